"""Safe loading of `.pt2` files: everything in them is checked before PyTorch reads it."""

HOW_TO_EXPORT = (
    "export its module: torch.export.save(torch.export.export(module, inputs), 'model.pt2')"
)
