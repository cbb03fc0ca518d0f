"""The ops of ONNX: which cost rule each one has, and which attributes the rules need."""

from __future__ import annotations

from typing import Any

_GROUPS: dict[str, str] = {
    "conv": "Conv ConvInteger QLinearConv FusedConv DeformConv",
    "conv_transpose": "ConvTranspose",
    "matmul": "Gemm MatMul MatMulInteger QLinearMatMul FusedMatMul FusedGemm MatMulNBits "
    "DynamicQuantizeMatMul",
    "einsum": "Einsum",
    "rnn": "LSTM GRU RNN",
    "attention": "Attention MultiHeadAttention GroupQueryAttention",
    "pool": "MaxPool AveragePool LpPool RoiAlign MaxRoiPool",
    "reduce": "GlobalAveragePool GlobalMaxPool GlobalLpPool ReduceMean ReduceSum ReduceMax "
    "ReduceMin ReduceProd "
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax ArgMin "
    "NonMaxSuppression",
    "nary": "Sum Mean Max Min",
    "softmax": "Softmax LogSoftmax Hardmax SoftmaxCrossEntropyLoss",
    "layer_norm": "LayerNormalization InstanceNormalization GroupNormalization GroupNorm "
    "MeanVarianceNormalization "
    "SkipLayerNormalization EmbedLayerNormalization",
    "rms_norm": "RMSNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization "
    "LpNormalization",
    "batch_norm": "BatchNormalization",
    "lrn": "LRN",
    "sigmoid": "Sigmoid Tanh Exp Log Erf Softplus Elu Selu Celu Mish HardSwish Swish Sin Cos Tan "
    "Sinh Cosh Asin Acos "
    "Atan Softsign",
    "gelu": "Gelu FastGelu BiasGelu QuickGelu",
    "resize": "Resize Upsample GridSample AffineGrid",
    "sort": "TopK Unique",
    "fft": "DFT STFT",
    "layout": "Transpose Cast CastLike",
    "move": "Concat Split Pad Expand Tile DepthToSpace SpaceToDepth Scatter ScatterElements "
    "ScatterND OneHot "
    "ConstantOfShape Range EyeLike Compress NonZero ReverseSequence MaxUnpool Col2Im CenterCropPad "
    "SequenceConstruct SequenceAt SequenceInsert SequenceEmpty SequenceErase SplitToSequence "
    "ConcatFromSequence Optional OptionalGetElement RandomNormal RandomUniform "
    "RandomNormalLike RandomUniformLike TensorScatter",
    "gather": "Gather",
    "pick": "GatherElements GatherND Slice",
    "view": "Reshape Flatten Squeeze Unsqueeze",
    "identity": "Identity Dropout",
    "shape": "Shape Size SequenceLength OptionalHasElement",
    "dequantize": "DequantizeLinear",
    "control": "If Loop Scan SequenceMap",
}

RULE = {name: rule for rule, names in _GROUPS.items() for name in names.split()}
"""Cost rule by op type; a type that is not here costs 1 flop per output element."""

SAME_SHAPE = frozenset(
    {
        "LayerNormalization",
        "SkipLayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "FastGelu",
        "BiasGelu",
        "QuickGelu",
        "Gelu",
        "MultiHeadAttention",
        "GroupQueryAttention",
        "GroupNorm",
        "BiasAdd",
        "RotaryEmbedding",
        "QLinearSigmoid",
        "QLinearAdd",
        "QLinearMul",
        "QLinearLeakyRelu",
        "Silu",
    }
)
"""Ops outside the ONNX standard whose first output has the shape of their first input."""

_WEIGHTS: dict[str, dict[str, Any]] = {
    "QLinearConv": {"weight": 3, "bias": 8},
    "ConvInteger": {"bias": 99},
    "DeformConv": {"bias": 3},
    "Gemm": {"bias": 2},
    "FusedGemm": {"bias": 2},
    "BatchNormalization": {"buffers": (3, 4)},
    "Mul": {"affine": "scale"},
    "Div": {"affine": "scale", "ordered": True},
    "Add": {"affine": "shift"},
    "Sub": {"affine": "shift", "ordered": True},
}


def rule_of(op_type: str, domain: str, attrs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the cost rule of a node and the attributes that the rules look at.

    Parameters
    ----------
    attrs : the plain attributes of the node (ints, floats, texts and lists of them).
    """
    rule = RULE.get(op_type, "elementwise")
    found = dict(_WEIGHTS.get(op_type, {}))
    if op_type == "Conv":
        found["groups"] = int(attrs.get("group", 1))
    if rule == "attention":
        found["heads"] = int(attrs.get("num_heads") or attrs.get("q_num_heads") or 1)
        if op_type == "Attention" and domain not in ("", "ai.onnx"):
            rule = "packed_attention"
        elif op_type == "Attention":
            found["past"] = 4
    elif rule == "matmul":
        found["trans_a"], found["trans_b"] = (
            bool(attrs.get("transA", 0)),
            bool(attrs.get("transB", 0)),
        )
        if op_type == "QLinearMatMul":
            found["right"] = 3
    elif rule == "pool":
        found["kernel"] = tuple(int(k) for k in attrs.get("kernel_shape", ()))
    elif rule == "einsum":
        found["equation"] = str(attrs.get("equation", ""))
    elif rule == "lrn":
        found["size"] = int(attrs.get("size", 5))
    return rule, found


DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8",
    18: "float8",
    19: "float8",
    20: "float8",
    21: "uint4",
    22: "int4",
    23: "float4",
    24: "float8",
    25: "uint2",
    26: "int2",
}
"""Element type by TensorProto.DataType."""
