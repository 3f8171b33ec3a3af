"""Check of ``models/model.json`` of a ``.pt2`` file, which describes the program.

PyTorch builds a program from this document. It writes the names of inputs, nodes and arguments into
Python source text and executes that. It looks operators up by name and evaluates texts of symbolic
sizes and of guards. It imports classes and modules that tree specifications name. The checks
follow the schema of PyTorch's serialized programs (``torch/_export/serde/schema.py``, version 8).
They return a new document of the known parts, without notes that no reader of ours needs (stack
traces and the like).

Operators are those listed here: computations on tensors, and nothing else. PyTorch's registry also
holds operators that read and write files (``aten.from_file``, ``aten.save``), change storages or
share them between processes. A name that is not listed is refused. So are new operators of a later
PyTorch, until somebody has checked and listed them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from placewright.errors import FileFormatError
from placewright.frameworks.torch.pt2.grammar import (
    DROPPED,
    LONGEST_NAME,
    Check,
    dotted,
    empty,
    expression,
    flag,
    identifier,
    integer,
    mapping,
    one_of,
    optional,
    real,
    record,
    sequence,
    shown,
    symbol,
    text,
    union,
)

# ATen operators that `torch.nn.functional` and tensor methods compute.
_PUBLIC = """
    abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm
    addmv addr adjoint affine_grid_generator alias all allclose alpha_dropout amax amin aminmax
    angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort
    argwhere as_strided as_strided_scatter asin asinh atan atan2 atanh atleast_1d atleast_2d
    atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm bartlett_window batch_norm bernoulli
    bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount binomial bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window
    block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cat cauchy cdist ceil
    celu chain_matmul chalf channel_shuffle cholesky cholesky_inverse cholesky_solve chunk clamp
    clamp_max clamp_min clip clone col2im column_stack combinations complex concat concatenate
    conj conj_physical constant_pad_nd contiguous conv1d conv2d conv3d conv_depthwise3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d convolution copy copysign corrcoef cos cosh
    cosine_embedding_loss cosine_similarity count_nonzero cov cross cross_entropy_loss ctc_loss
    cummax cummin cumprod cumsum cumulative_trapezoid deg2rad det detach diag diag_embed diagflat
    diagonal diagonal_scatter diff digamma dim dist div divide dot dropout dsplit dstack einsum
    elu embedding embedding_bag embedding_renorm empty empty_like empty_permuted empty_strided eq
    equal erf erfc erfinv exp exp2 expand expand_as expm1 exponential eye
    fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask
    feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift
    fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2
    fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill
    fill_diagonal_ fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod
    frac fractional_max_pool2d fractional_max_pool3d frexp frobenius_norm full full_like gather
    gcd ge gelu geometric geqrf ger glu gradient greater greater_equal grid_sampler
    grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt hamming_window hann_window
    hardshrink hardsigmoid hardswish hardtanh heaviside hinge_embedding_loss histc histogram
    histogramdd hsplit hstack huber_loss hypot i0 igamma igammac im2col imag index index_add
    index_copy index_fill index_put index_reduce index_select inner instance_norm inverse
    is_complex is_contiguous is_floating_point is_nonzero is_same_size is_signed isclose isfinite
    isin isinf isnan isneginf isposinf isreal istft item kaiser_window kl_div kron kthvalue
    l1_loss layer_norm lcm ldexp le leaky_relu lerp less less_equal lgamma lift lift_fresh
    linalg__powsum linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det
    linalg_diagonal linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
    linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank
    linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    linalg_vander linalg_vecdot linalg_vector_norm linear linspace log log10 log1p log2 log_normal
    log_sigmoid log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logdet
    logical_and logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt
    lu_solve lu_unpack mH mT margin_ranking_loss masked_fill masked_scatter masked_select matmul
    matrix_H matrix_exp matrix_power max max_pool1d max_pool1d_with_indices max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d maximum
    mean median meshgrid min minimum mish mm mode moveaxis movedim mse_loss msort mul
    multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward multinomial multiply
    mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow native_batch_norm
    native_channel_shuffle native_dropout native_group_norm native_layer_norm native_norm ne neg
    negative new_empty new_empty_strided new_full new_ones new_zeros nextafter nll_loss nll_loss2d
    nll_loss2d_forward nll_loss_forward nll_loss_nd nonzero nonzero_numpy nonzero_static norm
    norm_except_dim normal normal_functional not_equal nuclear_norm numel one_hot ones ones_like
    orgqr ormqr outer pad pad_sequence pairwise_distance pdist permute pinverse pixel_shuffle
    pixel_unshuffle poisson poisson_nll_loss polar polygamma positive pow prelu prod put qr
    quantile rad2deg rand rand_like randint randint_like randn randn_like random randperm range
    ravel real reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder
    renorm repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape
    reshape_as resolve_conj resolve_neg rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
    roll rot90 round row_stack rrelu rrelu_with_noise rrelu_with_noise_functional rsqrt rsub
    scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted
    segment_reduce select select_scatter selu sgn sigmoid sign signbit silu sin sinc sinh size
    slice slice_inverse slice_scatter slogdet slow_conv3d slow_conv3d_forward slow_conv_dilated2d
    slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d smooth_l1_loss
    soft_margin_loss softmax softplus softshrink sort special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv
    special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln
    special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1
    special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p
    special_log_ndtr special_log_softmax special_logit special_logsumexp
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri special_polygamma
    special_psi special_round special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_sinc
    special_softmax special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta split
    split_with_sizes sqrt square squeeze stack std std_mean stft storage_offset stride sub
    subtract sum sum_to_size svd swapaxes swapdims sym_constrain_range
    sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset
    sym_stride t take take_along_dim tan tanh tensor_split tensordot thnn_conv2d threshold tile to
    to_dense topk trace transpose trapezoid trapz triangular_solve tril tril_indices
    triplet_margin_loss triu triu_indices true_divide trunc type_as unbind unflatten unfold
    uniform unique_consecutive unique_dim unique_dim_consecutive unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander var
    var_mean vdot view view_as view_as_complex view_as_real vsplit vstack where xlogy zero zeros
    zeros_like numpy_T
"""

# ATen operators that PyTorch itself puts into exported programs.
_INTERNAL = """
    __and__ __lshift__ __or__ __rshift__ __xor__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__
    _adaptive_avg_pool2d _adaptive_avg_pool3d _add_relu _addmm_activation _aminmax _assert_async
    _assert_scalar _assert_tensor_metadata _batch_norm_no_update _batch_norm_with_update
    _batch_norm_with_update_functional _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half
    _cast_Int _cast_Long _cast_Short _cdist_forward _chunk_cat _conj _conj_copy _conj_physical
    _conv_depthwise2d _convolution _convolution_mode _ctc_loss _dim_arange _embedding_bag
    _embedding_bag_forward_only _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _fused_dropout _fused_rms_norm _fused_sdp_choice
    _grouped_mm _int_mm _is_all_true _is_any_true _linalg_det _linalg_eigh _linalg_eigvals
    _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense _log_softmax _logcumsumexp
    _masked_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _native_multi_head_attention _neg_view _neg_view_copy
    _pad_circular _pad_enum _pdist_forward _prelu_kernel _reshape_alias _reshape_copy
    _safe_softmax _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable
    _scaled_grouped_mm _scaled_mm _shape_as_tensor _softmax _stack _standard_gamma
    _sample_dirichlet _to_copy _transform_bias_rescale_qkv _transformer_encoder_layer_fwd
    _trilinear _unique _unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm
    _weight_norm _weight_norm_interface
"""

# Operators of the `prims` namespace, which decomposed programs consist of.
_PRIMS = """
    abs acos acosh add amax amin as_strided asin asinh atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor broadcast_in_dim cat cbrt ceil clone collapse collapse_view conj
    conj_physical convert_element_type cos cosh device_put digamma div empty_permuted
    empty_strided eq erf erf_inv erfc exp exp2 expm1 fft_c2c fft_c2r fft_r2c fill floor fmax fmin
    fmod frexp full full_like gcd ge gt hypot imag iota isfinite le lgamma log log10 log1p log2 lt
    maximum maximum_value minimum minimum_value mul ndtri ne neg nextafter normal pow prod real
    reciprocal remainder reshape rev round rsqrt scalar_tensor shift_left shift_right_arithmetic
    sign signbit sin sinh split_dim sqrt squeeze sub sum tan tanh transpose trunc uniform var
    view_of where xor_sum zeta
"""

# Functions of Python's `operator`, for sizes and tuples of tensors.
_PYTHON = """
    add and_ eq floordiv ge getitem gt le lshift lt mod mul ne neg or_ pos pow rshift sub truediv
"""

_HIGHER_ORDER = """
    cond map_impl scan while_loop wrap_with_autocast wrap_with_set_grad_enabled
"""

_VARIANTS = ("_", "_copy")  # in place (`relu_`), and a copy instead of a view (`permute_copy`)
_VALUES = ("Tensor", "int", "float", "bool", "number", "str", "Device", "Generator")


def _admitted() -> frozenset[str]:
    names = [f"torch.ops.aten.{name}{end}" for name in _PUBLIC.split() for end in ("", *_VARIANTS)]
    names += [f"torch.ops.aten.{name}" for name in _INTERNAL.split()]
    names += [f"torch.ops.prims.{name}" for name in _PRIMS.split()]
    return frozenset(names)


_OVERLOADED = _admitted()
_PLAIN = frozenset(
    [f"_operator.{name}" for name in _PYTHON.split()]
    + [f"torch.ops.higher_order.{name}" for name in _HIGHER_ORDER.split()]
)


def is_admitted(target: str) -> bool:
    """True if a file may call ``torch.ops.aten.add.Tensor``, ``_operator.getitem`` and the like.

    Besides being listed, an overload must be registered and take values alone: tensors, numbers,
    texts, dtypes, layouts, devices and generators, but no storage, stream or object.
    """
    if target in _PLAIN:
        return True
    name, _, overload = target.rpartition(".")
    return name in _OVERLOADED and _takes_values(name.removeprefix("torch.ops."), overload)


@cache
def _takes_values(name: str, overload: str) -> bool:
    import torch

    namespace, _, base = name.partition(".")
    try:
        schema = torch._C._get_schema(  # with which a packet's overload is looked up
            f"{namespace}::{base}", "" if overload == "default" else overload
        )
    except RuntimeError:  # no such overload
        return False
    kinds = [re.sub(r"Optional|List|[\[\]]", "", str(entry.type)) for entry in schema.arguments]
    return all(kind in _VALUES for kind in kinds)


_DEEPEST = 20  # branches and loop bodies inside each other
_DEVICES = ("cpu", "cuda", "xpu", "mps", "meta")
_DIALECTS = ("TRAINING", "ATEN")
_STACK = re.compile(r"[\w.@-]*,[\w.@\[\]'-]*,[\w.<>]*")
_CALLED_MODULE = re.compile(r"@\d+$")
_LISTS = ("builtins.tuple", "builtins.list", "torch.fx.immutable_collections.immutable_list")
_MAPPINGS = (
    "builtins.dict",
    "collections.OrderedDict",
    "torch.fx.immutable_collections.immutable_dict",
)


def checked_program(document: Any) -> dict[str, Any]:
    """Check a program and return it, written anew.

    Raises:
        FileFormatError: it holds something that no exported program of ATen operators holds.
    """
    checked: dict[str, Any] = _PROGRAM(document)
    return checked


def checked_tensors(document: Any) -> dict[str, Any]:
    """Check ``model_weights_config.json`` or ``model_constants_config.json``: places of tensors.

    Raises:
        FileFormatError: an entry is no plain tensor, or is stored as a pickle.
    """
    checked: dict[str, Any] = _TENSORS(document)
    return checked


def _target(value: Any) -> str:
    target = text(value)
    if not is_admitted(target):
        raise FileFormatError(
            f"it calls {shown(target)}, which is no ATen operator that only computes; export the "
            "model without it"
        )
    return target


def _argument_name(value: Any) -> str:
    return "" if value == "" else identifier(value)  # positional ones may have none


def _module_path(value: Any) -> str:
    path = text(value)
    return path if path == "" else dotted(_CALLED_MODULE.sub("", path)) and path


def _module_stack(value: Any) -> str:
    stack = text(value)
    for entry in stack.split(";"):
        if stack and not _STACK.fullmatch(entry):
            raise FileFormatError(f"the module stack {shown(entry)} is not made of plain names")
    return stack


def _result_tree(value: Any) -> str:
    """Check a specification of nested containers; dataclasses become dictionaries.

    PyTorch would import the class that the file names.
    """
    try:
        protocol, tree = json.loads(text(value))
    except (ValueError, TypeError, RecursionError):
        return _tree(value)
    return _tree(json.dumps([protocol, _without_classes(tree, 0)]), _key_of_result)


def _without_classes(node: Any, depth: int) -> Any:
    if depth > _DEEPEST or not isinstance(node, dict):
        return node
    children = node.get("children_spec")
    if not isinstance(children, list):
        return node
    made = {**node, "children_spec": [_without_classes(child, depth + 1) for child in children]}
    if node.get("type") in (None, *_LISTS, *_MAPPINGS):
        return made
    try:
        names = json.loads(text(node.get("context")))
    except (ValueError, RecursionError):
        return made
    if isinstance(names, list) and len(names) == 2 and isinstance(names[0], list):
        names = names[0]  # of a dataclass: fields, and those that are None
    if not (isinstance(names, list) and len(names) == len(children)):
        return made
    return {**made, "type": "builtins.dict", "context": json.dumps(names)}


def _tree(value: Any, key: Check = identifier) -> str:
    """Check a specification of nested containers.

    Args:
        key: check of the keys of dictionaries; names of keyword arguments become source text.
    """
    try:
        protocol, tree = json.loads(text(value))
    except (ValueError, TypeError, RecursionError):
        raise FileFormatError(f"{shown(value)} is no tree of containers") from None
    if protocol != 1 or isinstance(protocol, bool):
        raise FileFormatError(f"{shown(value)} is a tree of containers of another version")
    return json.dumps([1, _node_of_tree(tree, key)])


def _node_of_tree(value: Any, key: Check) -> dict[str, Any]:
    node = record(
        {
            "type": optional(text),
            "context": optional(text),
            "children_spec": sequence(lambda child: _node_of_tree(child, key)),
        }
    )(value)
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if kind is None or kind in _LISTS:
        if context != (None if kind is None else "null") or (kind is None and children):
            raise FileFormatError(f"{shown(context)} is no part of a tree of containers")
    elif kind in _MAPPINGS:
        keys = _keys(context, key)
        if len(keys) != len(children):
            raise FileFormatError(f"{shown(context)} does not name each part of a tree")
        context = json.dumps(keys)
    else:
        raise FileFormatError(
            f"its inputs or outputs are {shown(kind)}; export a model that takes and returns "
            "tensors, tuples, lists and dictionaries"
        )
    return {"type": kind, "context": context, "children_spec": children}


def _keys(context: Any, key: Check) -> list[str | int]:
    """Check the keys of a dictionary."""
    try:
        keys = json.loads(text(context))
    except (ValueError, RecursionError):
        raise FileFormatError(f"{shown(context)} is no list of keys") from None
    found: list[str | int] = sequence(key)(keys)
    return found


def _key_of_result(value: Any) -> str | int:
    """A key under which a result is returned: a text or a number."""
    if not isinstance(value, str):
        return integer(value)
    if not (len(value) <= LONGEST_NAME and value.isprintable()):
        raise FileFormatError(f"the key {shown(value)} of a result is no printable name")
    return value


def _graph(value: Any, depth: int = 0) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise FileFormatError(f"its branches and loops are nested more than {_DEEPEST} deep")
    checked: dict[str, Any] = _graph_check(depth)(value)
    return checked


_DEVICE = record({"type": one_of(*_DEVICES)}, {"index": optional(integer)})
_TENSOR_NAME = record({"name": identifier})
_EXPRESSION = record(
    {"expr_str": expression},
    {"hint": optional(union({"as_int": integer, "as_bool": flag, "as_float": real}))},
)
_SIZE = union({"as_expr": _EXPRESSION, "as_int": integer})


def _tensor(size: Check) -> Check:
    """Make the check of a tensor's record from that of its sizes."""
    return record(
        {
            "dtype": integer,
            "sizes": sequence(size),
            "requires_grad": flag,
            "device": _DEVICE,
            "strides": sequence(size),
            "storage_offset": size,
            "layout": integer,
        }
    )


_SIZE_ARGUMENT = union({"as_name": identifier, "as_int": integer})
_REAL_ARGUMENT = union({"as_name": identifier, "as_float": real})
_FLAG_ARGUMENT = union({"as_name": identifier, "as_bool": flag})
_MAYBE_TENSOR = union({"as_tensor": _TENSOR_NAME, "as_none": flag})
_ARGUMENTS: dict[str, Check] = {
    "as_none": flag,
    "as_tensor": _TENSOR_NAME,
    "as_tensors": sequence(_TENSOR_NAME),
    "as_int": integer,
    "as_ints": sequence(integer),
    "as_float": real,
    "as_floats": sequence(real),
    "as_string": text,  # written into source text as a literal
    "as_strings": sequence(text),
    "as_sym_int": _SIZE_ARGUMENT,
    "as_sym_ints": sequence(_SIZE_ARGUMENT),
    "as_scalar_type": integer,
    "as_memory_format": integer,
    "as_layout": integer,
    "as_device": _DEVICE,
    "as_bool": flag,
    "as_bools": sequence(flag),
    "as_sym_bool": _FLAG_ARGUMENT,
    "as_sym_bools": sequence(_FLAG_ARGUMENT),
    "as_optional_tensors": sequence(_MAYBE_TENSOR),
    "as_optional_tensor": _MAYBE_TENSOR,
    "as_sym_float": _REAL_ARGUMENT,
    "as_sym_floats": sequence(_REAL_ARGUMENT),
    "as_complex": record({"real": real, "imag": real}),
}
_ARGUMENT = union(_ARGUMENTS)
_NOTES = {
    "nn_module_stack": _module_stack,
    **dict.fromkeys(("stack_trace", "source_fn_stack", "torch_fn", "custom", "from_node"), DROPPED),
}


def _graph_check(depth: int) -> Check:
    body = record({"name": identifier, "graph": lambda graph: _graph(graph, depth + 1)})
    argument = union({**_ARGUMENTS, "as_graph": body})
    named = record({"name": _argument_name, "arg": argument}, {"kind": optional(integer)})
    node = record(
        {
            "target": _target,
            "inputs": sequence(named),
            "outputs": sequence(_ARGUMENT),
            "metadata": record({}, _NOTES),
        },
        {"is_hop_single_tensor_return": optional(flag), "name": optional(identifier)},
    )
    return record(
        {
            "inputs": sequence(_ARGUMENT),
            "outputs": sequence(_ARGUMENT),
            "nodes": sequence(node),
            "tensor_values": mapping(identifier, _tensor(_SIZE)),
            "sym_int_values": mapping(identifier, _SIZE),
            "sym_bool_values": mapping(
                identifier, union({"as_expr": _EXPRESSION, "as_bool": flag})
            ),
        },
        {
            "is_single_tensor_return": flag,
            "custom_obj_values": empty("brings objects of other packages"),
            "sym_float_values": mapping(
                identifier, union({"as_expr": _EXPRESSION, "as_float": real})
            ),
        },
    )


_CONSTANT = union(
    {"as_none": flag, "as_int": integer, "as_float": real, "as_string": text, "as_bool": flag}
)
_INPUT = union(
    {
        "user_input": record({"arg": _ARGUMENT}),
        "parameter": record({"arg": _TENSOR_NAME, "parameter_name": dotted}),
        "buffer": record({"arg": _TENSOR_NAME, "buffer_name": dotted, "persistent": flag}),
        "tensor_constant": record({"arg": _TENSOR_NAME, "tensor_constant_name": dotted}),
        "constant_input": record({"name": identifier, "value": _CONSTANT}),
    }
)
_OUTPUT = union(
    {
        "user_output": record({"arg": _ARGUMENT}),
        "loss_output": record({"arg": _TENSOR_NAME}),
        "buffer_mutation": record({"arg": _TENSOR_NAME, "buffer_name": dotted}),
        "parameter_mutation": record({"arg": _TENSOR_NAME, "parameter_name": dotted}),
        "gradient_to_parameter": record({"arg": _TENSOR_NAME, "parameter_name": dotted}),
        "gradient_to_user_input": record({"arg": _TENSOR_NAME, "user_input_name": identifier}),
        "user_input_mutation": record({"arg": _TENSOR_NAME, "user_input_name": identifier}),
    }
)
_CALL = record(
    {
        "inputs": sequence(_ARGUMENT),
        "outputs": sequence(_ARGUMENT),
        "in_spec": _tree,
        "out_spec": _result_tree,
    },
    {"forward_arg_names": optional(sequence(identifier))},
)
_PROGRAM = record(
    {
        "graph_module": record(
            {
                "graph": _graph,
                "signature": record(
                    {"input_specs": sequence(_INPUT), "output_specs": sequence(_OUTPUT)}
                ),
                "module_call_graph": sequence(
                    record({"fqn": _module_path}, {"signature": optional(_CALL)})
                ),
            },
            {
                "metadata": lambda _: {},
                "treespec_namedtuple_fields": empty(
                    "takes or returns named tuples; export a model that takes and returns tensors"
                ),
            },
        ),
        "opset_version": mapping(identifier, integer),
        "range_constraints": mapping(
            symbol, record({"min_val": optional(integer), "max_val": optional(integer)})
        ),
        "schema_version": record({"major": integer, "minor": integer}),
    },
    {
        "verifiers": sequence(one_of(*_DIALECTS)),
        "torch_version": DROPPED,
        "guards_code": empty("brings code for its guards; export with static shapes"),
    },
)


def _is_tensor_file(value: Any) -> str:
    path = text(value)
    if not re.fullmatch(r"(weight|tensor)_\d{1,9}", path):
        raise FileFormatError(f"it names {shown(path)}, which is no tensor")
    return path


def _stored(value: Any) -> bool:
    if flag(value):
        raise FileFormatError("a tensor is stored as a pickle: it is not made of tensors alone")
    return False


_TENSORS = record(
    {
        "config": mapping(
            dotted,
            record(
                {
                    "path_name": _is_tensor_file,
                    "is_param": flag,
                    "use_pickle": _stored,
                    "tensor_meta": _tensor(union({"as_int": integer})),
                }
            ),
        )
    }
)
