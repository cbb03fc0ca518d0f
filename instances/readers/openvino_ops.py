"""The ops of OpenVINO's IR: which cost rule each one has, and which attributes the rules need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.draft import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUPS: dict[str, str] = {
    "conv": "Convolution GroupConvolution BinaryConvolution DeformableConvolution",
    "conv_transpose": "ConvolutionBackpropData GroupConvolutionBackpropData",
    "matmul": "MatMul FullyConnected",
    "einsum": "Einsum",
    "rnn": "LSTMSequence GRUSequence RNNSequence LSTMCell GRUCell RNNCell",
    "attention": "ScaledDotProductAttention",
    "pool": "MaxPool AvgPool ROIPooling ROIAlign PSROIPooling",
    "reduce": "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceLogicalAnd ReduceLogicalOr "
    "AdaptiveAvgPool AdaptiveMaxPool NonMaxSuppression CumSum",
    "softmax": "SoftMax Softmax LogSoftmax",
    "layer_norm": "MVN GroupNormalization",
    "rms_norm": "NormalizeL2 RMS GRN",
    "batch_norm": "BatchNormInference",
    "lrn": "LRN",
    "sigmoid": "Sigmoid Tanh Exp Log Erf SoftPlus Elu Selu HSwish HSigmoid HardSigmoid Swish Mish "
    "Sin Cos Tan Sinh "
    "Cosh Asin Acos Atan SoftSign",
    "gelu": "Gelu",
    "resize": "Interpolate GridSample",
    "sort": "TopK",
    "fft": "DFT IDFT RDFT IRDFT",
    "layout": "Transpose Convert ConvertLike ReorgYolo",
    "move": "Concat Split VariadicSplit Pad Broadcast Tile DepthToSpace SpaceToDepth "
    "ShuffleChannels ReverseSequence "
    "ScatterUpdate ScatterElementsUpdate ScatterNDUpdate OneHot Range NonZero Reverse Roll "
    "BatchToSpace SpaceToBatch "
    "RandomUniform Eye ReadValue ExtractImagePatches",
    "gather": "Gather EmbeddingBagOffsetsSum EmbeddingBagPackedSum EmbeddingSegmentsSum",
    "pick": "StridedSlice Slice GatherND GatherElements GatherTree",
    "view": "Reshape Squeeze Unsqueeze",
    "shape": "ShapeOf",
    "dequantize": "FakeQuantize FakeConvert",
    "control": "If Loop TensorIterator",
}

RULE = {name: rule for rule, names in _GROUPS.items() for name in names.split()}
"""Cost rule by layer type; a type that is not here costs 1 flop per output element."""

_EXTRA: dict[str, dict[str, Any]] = {
    "Convolution": {"bias": 99},
    "BinaryConvolution": {"bias": 99},
    "GroupConvolution": {"bias": 99, "out_axes": 2},
    "DeformableConvolution": {"bias": 99, "weight": 2},
    "ConvolutionBackpropData": {"bias": 99},
    "GroupConvolutionBackpropData": {"bias": 99, "out_axes": 2},
    "BatchNormInference": {"buffers": (3, 4)},
    "LSTMSequence": {"weights": (4, 5)},
    "GRUSequence": {"weights": (3, 4)},
    "RNNSequence": {"weights": (3, 4)},
    "LSTMCell": {"weights": (3, 4)},
    "GRUCell": {"weights": (2, 3)},
    "RNNCell": {"weights": (2, 3)},
    "Add": {"affine": "shift"},
    "Subtract": {"affine": "shift", "ordered": True},
    "Multiply": {"affine": "scale"},
    "Divide": {"affine": "scale", "ordered": True},
}

DTYPES = {
    "FP32": "float32",
    "f32": "float32",
    "FP16": "float16",
    "f16": "float16",
    "BF16": "bfloat16",
    "bf16": "bfloat16",
    "FP64": "float64",
    "f64": "float64",
    "I64": "int64",
    "i64": "int64",
    "I32": "int32",
    "i32": "int32",
    "I16": "int16",
    "i16": "int16",
    "I8": "int8",
    "i8": "int8",
    "I4": "int4",
    "i4": "int4",
    "U64": "uint64",
    "u64": "uint64",
    "U32": "uint32",
    "u32": "uint32",
    "U16": "uint16",
    "u16": "uint16",
    "U8": "uint8",
    "u8": "uint8",
    "U4": "uint4",
    "u4": "uint4",
    "nf4": "float4",
    "NF4": "float4",
    "BOOL": "bool",
    "boolean": "bool",
    "f8e4m3": "float8",
    "f8e5m2": "float8",
    "STRING": "string",
    "string": "string",
    "U2": "uint2",
    "u2": "uint2",
}
"""Element type by the precision of a port or the element_type of a constant."""


def rule_of(kind: str, attributes: Mapping[str, str], where: str) -> tuple[str, dict[str, Any]]:
    """Return the cost rule of a layer and the attributes that the rules look at."""
    rule = RULE.get(kind, "elementwise")
    found = dict(_EXTRA.get(kind, {}))
    if rule == "matmul":
        for key in ("a", "b"):
            found[f"trans_{key}"] = attributes.get(f"transpose_{key}", "false").lower() in (
                "true",
                "1",
            )
    elif rule == "pool" and "kernel" in attributes:
        found["kernel"] = tuple(
            whole(k.strip(), where, "kernel") for k in attributes["kernel"].split(",")
        )
    elif rule == "einsum":
        found["equation"] = attributes.get("equation", "")
    elif rule == "lrn":
        found["size"] = whole(attributes.get("size", "5"), where, "size")
    return rule, found
