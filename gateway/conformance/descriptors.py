"""Compares the gateway's messages with the descriptors inside Triton's published client: numbers, types, repetition, methods.

Usage: python descriptors.py. Exit status 1 if anything differs. Part of `./x oip`.
"""

import pathlib
import re
import sys

# This folder has a file with the package's name.
sys.path.pop(0)

from tritonclient.grpc import model_config_pb2, service_pb2

GRPC = pathlib.Path(__file__).resolve().parent.parent / "src" / "grpc"

# Ours: the interface's, one or several that look alike.
MESSAGES = {
    "Flag": ["ServerLiveResponse", "ServerReadyResponse", "ModelReadyResponse"],
    "ModelName": ["ModelReadyRequest", "ModelMetadataRequest", "ModelConfigRequest", "ModelStatisticsRequest"],
    "ServerMetadata": ["ServerMetadataResponse"],
    "ModelMetadata": ["ModelMetadataResponse"],
    "TensorMetadata": ["ModelMetadataResponse.TensorMetadata"],
    "Choice": ["InferParameter"],
    "InferRequest": ["ModelInferRequest"],
    "InferInput": ["ModelInferRequest.InferInputTensor"],
    "InferRequestedOutput": ["ModelInferRequest.InferRequestedOutputTensor"],
    "InferContents": ["InferTensorContents"],
    "InferResponse": ["ModelInferResponse"],
    "StreamProblem": ["ModelStreamInferResponse"],
    "ModelConfigResponse": ["ModelConfigResponse"],
    "ModelConfig": ["ModelConfig"],
    "ModelInput": ["ModelInput"],
    "ModelOutput": ["ModelOutput"],
    "Statistics": ["ModelStatisticsResponse"],
    "ModelStatistics": ["ModelStatistics"],
    "InferStatistics": ["InferStatistics"],
    "Spent": ["StatisticDuration"],
    "Index": ["RepositoryIndexResponse"],
    "ModelIndex": ["RepositoryIndexResponse.ModelIndex"],
    "IndexAsk": ["RepositoryIndexRequest"],
    "Region": ["SystemSharedMemoryRegisterRequest", "SystemSharedMemoryStatusResponse.RegionStatus"],
    "RegionName": ["SystemSharedMemoryStatusRequest", "SystemSharedMemoryUnregisterRequest"],
    "Regions": ["SystemSharedMemoryStatusResponse"],
    "RepositoryModel": ["RepositoryModelLoadRequest", "RepositoryModelUnloadRequest"],
}
# Without fields, or with nothing but a oneof, whose fields are another type's.
WITHOUT_FIELDS = {"Empty", "InferParameter"}
TYPES = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "message": 11, "map": 11, "uint32": 13}
ENUM = 14


def ours():
    """Name: {number: (type, is it repeated)}."""
    text = (GRPC / "messages.rs").read_text()
    found = {}
    for name, body in re.findall(r"^    (\w+) \{(.*?)\}$", text, re.S | re.M):
        fields = re.findall(r'#\[prost\((\w+)([^\]]*), tag = "(\d+)"\)\]', body)
        found[name] = {int(tag): (TYPES[kind], kind == "map" or "repeated" in rest) for kind, rest, tag in fields}
    choice = re.findall(r'#\[prost\((\w+), tag = "(\d+)"\)\]\n    \w+\(', text)
    found["Choice"] = {int(tag): (TYPES[kind], False) for kind, tag in choice}
    return found


def theirs(path):
    first, *rest = path.split(".")
    files = (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR)
    descriptor = next(file.message_types_by_name[first] for file in files if first in file.message_types_by_name)
    for name in rest:
        descriptor = descriptor.nested_types_by_name[name]
    return descriptor


def main():
    wrong, fields = [], 0
    found = ours()
    wrong += [f"{name} is compared with nothing" for name in found if name not in MESSAGES and name not in WITHOUT_FIELDS]
    for name, paths in MESSAGES.items():
        for path in paths:
            descriptor = theirs(path)
            for number, (kind, repeated) in found[name].items():
                field = descriptor.fields_by_number.get(number)
                if field is None:
                    wrong.append(f"{name} {number}: {path} has no such field")
                    continue
                is_kind = field.type == kind or (kind == TYPES["int32"] and field.type == ENUM)
                if not is_kind or field.is_repeated != repeated:
                    wrong.append(f"{name} {number} is not {path}.{field.name}")
                fields += 1
    decode, encode = ((GRPC / f"{name}.rs").read_text() for name in ("decode", "encode"))
    for text, constant, path, name in (
        (decode, "RAW", "ModelInferRequest", "raw_input_contents"),
        (decode, "INPUTS", "ModelInferRequest", "inputs"),
        (decode, "OUTPUTS", "ModelInferRequest", "outputs"),
        (decode, "PARAMETERS", "ModelInferRequest", "parameters"),
        (encode, "MODEL_NAME", "ModelInferResponse", "model_name"),
        (encode, "MODEL_VERSION", "ModelInferResponse", "model_version"),
        (encode, "ID", "ModelInferResponse", "id"),
        (encode, "OUTPUTS", "ModelInferResponse", "outputs"),
        (encode, "OUTPUT_NAME", "ModelInferResponse.InferOutputTensor", "name"),
        (encode, "OUTPUT_DATATYPE", "ModelInferResponse.InferOutputTensor", "datatype"),
        (encode, "OUTPUT_SHAPE", "ModelInferResponse.InferOutputTensor", "shape"),
        (encode, "RAW", "ModelInferResponse", "raw_output_contents"),
        (encode, "STREAMED", "ModelStreamInferResponse", "infer_response"),
    ):
        number = int(re.search(rf"const {constant}: u32 = (\d+);", text)[1])
        if theirs(path).fields_by_name[name].number != number:
            wrong.append(f"{constant} is not the number of {path}.{name}")
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    named = set(re.findall(r'"([A-Z]\w+)"(?= =>| \||\) =>| \{)', (GRPC / "mod.rs").read_text())) | {"ModelStreamInfer", "ModelInfer"}
    wrong += [f"there is no method {name}" for name in named if name not in methods]
    print(f"descriptors: {fields} fields of {len(MESSAGES)} messages and {len(named)} methods compared, {len(wrong)} wrong")
    print("\n".join(wrong))
    sys.exit(1 if wrong or fields < 80 or len(named) < 10 else 0)


main()
