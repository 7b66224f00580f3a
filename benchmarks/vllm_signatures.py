"""Does a release of vLLM still have what the adapter relies on? Read from its wheel, not installed.

    python benchmarks/vllm_signatures.py 0.22.0 0.24.0 0.28.0 0.32.0 0.33.0 --folder wheels
    python benchmarks/vllm_signatures.py --wheel some/vllm-1.0-....whl

Wheels are downloaded without their dependencies by pip; they are large (about half a gigabyte).
Exits with 1 when something that the adapter cannot do without is missing.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing in vLLM's code.

    Attributes:
        name: what it is for.
        path: the module's file.
        owner: the class that holds it; empty for the module.
        member: the function, or the class's field.
        parameters: how the function's parameters begin; ``None`` for a field.
        is_needed: whether the adapter fails without it; else it does without a feature.
    """

    name: str
    path: str
    owner: str
    member: str
    parameters: tuple[str, ...] | None
    is_needed: bool


_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_OUTPUT = "vllm/v1/core/sched/output.py"
EXPECTED = (
    Expectation(
        "custom proposers",
        "vllm/v1/spec_decode/custom_class_proposer.py",
        "",
        "create_custom_proposer",
        ("vllm_config",),
        True,
    ),
    Expectation(
        "the runner's draft call",
        _RUNNER,
        "GPUModelRunner",
        "propose_draft_token_ids",
        ("self", "scheduler_output", "sampled_token_ids"),
        False,
    ),
    Expectation(
        "the check of the draft model's context",
        _RUNNER,
        "GPUModelRunner",
        "_input_fits_in_drafter",
        ("self", "common_attn_metadata"),
        False,
    ),
    Expectation(
        "new requests, for their salts",
        _OUTPUT,
        "NewRequestData",
        "from_request",
        ("cls", "request"),
        False,
    ),
    Expectation("new requests' ids", _OUTPUT, "NewRequestData", "req_id", None, False),
    Expectation(
        "a step's new requests", _OUTPUT, "SchedulerOutput", "scheduled_new_reqs", None, False
    ),
    Expectation(
        "a step's ended requests", _OUTPUT, "SchedulerOutput", "finished_req_ids", None, False
    ),
    Expectation(
        "a step's verified drafts",
        _OUTPUT,
        "SchedulerOutput",
        "scheduled_spec_decode_tokens",
        None,
        False,
    ),
    Expectation(
        "dynamic numbers of tokens",
        _OUTPUT,
        "SchedulerOutput",
        "num_spec_tokens_to_schedule",
        None,
        False,
    ),
    Expectation(
        "additional_config, for the settings",
        "vllm/config/vllm.py",
        "VllmConfig",
        "additional_config",
        None,
        True,
    ),
    Expectation(
        "the expansion of sampling parameters (mended)",
        "vllm/v1/sample/rejection_sampler.py",
        "",
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        False,
    ),
    Expectation(
        "top_k alone (mended)",
        "vllm/v1/sample/ops/topk_topp_sampler.py",
        "",
        "apply_top_k_only",
        ("logits", "k"),
        False,
    ),
)
CALL_ARGUMENTS = 3  # of propose, beside slot_mappings


def check_wheel(wheel: Path) -> dict[str, str]:
    """Return for each expectation "as expected", "missing", or what was found instead."""
    report = {}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        trees = {
            path: ast.parse(archive.read(path))
            for path in {expected.path for expected in EXPECTED}
            if path in names
        }
        for expected in EXPECTED:
            tree = trees.get(expected.path)
            report[expected.name] = "missing" if tree is None else check(tree, expected)
        if _RUNNER in trees:
            report["the call of propose"] = check_call(trees[_RUNNER])
    return report


def check(tree: ast.Module, expected: Expectation) -> str:
    """Return what a module says about an expectation."""
    body: list[ast.stmt] = tree.body
    if expected.owner:
        owners = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == expected.owner
        ]
        if not owners:
            return "missing"
        body = owners[0].body
    for node in body:
        is_field = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == expected.member
        if is_field and expected.parameters is None:
            return "as expected"
        if isinstance(node, Function) and node.name == expected.member:
            names = tuple(argument.arg for argument in node.args.args)
            wanted = expected.parameters or ()
            return "as expected" if names[: len(wanted)] == wanted else f"({', '.join(names)})"
    return "missing"


def check_call(tree: ast.Module) -> str:
    """Return how the runner calls a custom class's ``propose``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "custom_class" in ast.unparse(node.test):
            for call in ast.walk(ast.Module(node.body, [])):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".propose"):
                    keywords = {keyword.arg for keyword in call.keywords}
                    fits = len(call.args) == CALL_ARGUMENTS and keywords <= {"slot_mappings"}
                    return "as expected" if fits else ast.unparse(call)
    return "missing"


def download(version: str, folder: Path) -> Path:
    """Return the wheel of a release, downloaded if it is not there yet.

    Raises:
        FileNotFoundError: pip found no wheel.
    """
    pattern = f"vllm-{version}-*.whl"
    if not list(folder.glob(pattern)):
        platform = ["--platform", "manylinux_2_31_x86_64", "--platform", "manylinux1_x86_64"]
        platform += ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_35_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", *platform, "--dest", str(folder), f"vllm=={version}"]
        subprocess.run(command, check=True)
    wheels = sorted(folder.glob(pattern))
    if not wheels:
        raise FileNotFoundError(f"expected a file {pattern} in {folder}, got none")
    return wheels[0]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--wheel", type=Path, action="append", default=[])
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    wheels = {path.name.split("-")[1]: path for path in arguments.wheel}
    for version in arguments.versions:
        wheels[version] = download(version, arguments.folder)
    report = {version: check_wheel(path) for version, path in wheels.items()}
    needed = {expected.name for expected in EXPECTED if expected.is_needed}
    needed.add("the call of propose")
    is_broken = False
    for version, findings in report.items():
        for name, finding in findings.items():
            if finding != "as expected":
                mark = "NEEDED" if name in needed else "does without"
                is_broken = is_broken or name in needed
                print(f"{version}: {name}: {finding} ({mark})")
        num_fine = sum(finding == "as expected" for finding in findings.values())
        print(f"{version}: {num_fine} of {len(findings)} as expected")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if is_broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
