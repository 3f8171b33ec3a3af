"""The family of each zoo model, by which the expert chooses its rule."""

FAMILY_OF = {
    "inception_v3": "convolutional",
    "resnet50": "convolutional",
    "nasnet_a": "convolutional",
    "bert_base": "transformer",
    "gpt2": "transformer",
    "gnmt": "recurrent",
    "rnnlm": "recurrent",
    "moe": "mixture-of-experts",
}
