"""Processor instructions that Numba does not offer, as intrinsics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

_CGUTILS, _ARRAYS = cast(Any, cgutils), cast(Any, arrayobj)  # which have no types


def _trailing_zeros(_: Any, word: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(word), generate


def _choose(_: Any, condition: Any, one: Any, other: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        chosen = builder.select(*arguments)
        chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
        return chosen

    return one(condition, one, other), generate


def _unlikely(_: Any, condition: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        bit = ir.IntType(1)
        function = _CGUTILS.get_or_insert_function(
            builder.module, ir.FunctionType(bit, [bit, bit]), "llvm.expect.i1"
        )
        return builder.call(function, [arguments[0], bit(0)])

    return types.boolean(condition), generate


def _prefetch(_: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.PointerType(ir.IntType(8)))
        number = ir.IntType(32)
        function = _CGUTILS.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [address.type, number, number, number]),
            "llvm.prefetch.p0",
        )
        # To be read, into every cache, data and not code.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _records_at(context: Any, block: Any, first: Any, stop: Any, dtype: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.return_type)(context, builder)
        bytes_ = context.make_array(signature.args[0])(context, builder, arguments[0])
        word = context.get_value_type(types.intp)
        item = word(context.get_abi_sizeof(context.get_data_type(signature.return_type.dtype)))
        length = builder.udiv(builder.sub(arguments[2], arguments[1]), item)
        data = builder.bitcast(builder.gep(bytes_.data, [arguments[1]]), made.data.type)
        _ARRAYS.populate_array(made, data, [length], [item], item, None)
        return made._getvalue()

    return types.Array(dtype.dtype, 1, "C")(block, first, stop, dtype), generate


# Number of the lowest bit of a word, 64 where there is none.
trailing_zeros = cast(Callable[[int], int], _intrinsic(_trailing_zeros))
# The second argument where the first is true, or else the third, both of one type; of a conditional
# expression LLVM mostly makes a branch, which a processor mispredicts where the data are random.
choose = cast(Callable[[bool, Any, Any], Any], _intrinsic(_choose))
# Begin to bring an entry of an array into the cache, and wait for nothing.
prefetch = cast(Callable[[Any, int], None], _intrinsic(_prefetch))
# The records of a dtype in a block of bytes from one place to another. They hold no reference to
# the block, which must outlive them. Slices and views of NumPy's kind cost fifty times as much.
records_at = cast(Callable[[Any, int, int, Any], NDArray[Any]], _intrinsic(_records_at))
# A condition that is mostly false, so that the processor may go ahead before it knows.
unlikely = cast(Callable[[bool], bool], _intrinsic(_unlikely))
