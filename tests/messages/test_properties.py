"""The parser on random figures, random wrappings, damaged texts and texts that are cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hbmwatch import OomMessage, parse_oom, parse_ooms
from tests.messages.samples import SAMPLES, sample, without_text
from tests.messages.test_wrapped import WRAPPINGS

ENCODED = {name for name in WRAPPINGS if name.startswith(("a form", "a link"))}

TEXTS = {name: sample(name) for name in SAMPLES}

# Each with its figures in the places of fields; "#" marks whole bytes, "@" one of XLA:GPU's sizes.
TEMPLATES = (
    "Ran out of memory in memory space {memory_space}. Used {used} of {limit} {memory_space}. "
    "Exceeded {memory_space} capacity by {exceeded_by}.",
    "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries ({used}) exceeds available HBM ({limit}). HLO module: {module}.\nSee "
    "https://openxla.org/xla/errors/error_1000 for more details.",
    "Allocation (size={#requested}) would exceed memory (size={#limit}) :: #allocation7 "
    "[shape = 'u8[8,128]{{1,0}}', space={memory_space}, size = 0xffffffffffffffff, tag = ''",
    "Compilation failure: Aborting compilation early because it's unlikely to have enough device "
    "memory. Requires {used}, has {limit} available.",
    "TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available bytes: "
    "{limit}",
    "Ran out of memory in memory space {memory_space} while allocating on stack for x. Scoped "
    "allocation with size {requested} and limit {limit} exceeded scoped {memory_space} limit by "
    "{exceeded_by}.",
    "Error allocating device buffer: Attempting to allocate {requested}. That was not possible. "
    "There are {free} free. Due to fragmentation, the largest contiguous region of free memory is "
    "{largest_free}.; (0x0x0_HBM0)",
    "Error loading program '{module}': Attempting to reserve {requested} at the bottom of memory. "
    "That was not possible. There are {free} free, 0B reserved, and 1.00G reservable.",
    "Failed to allocate request for {@requested} ({#requested}B) on device ordinal 0",
    "Out of memory while trying to allocate {#requested} bytes.",
    "Out of memory while trying to allocate {@requested}. [executable_name='{module}']",
    "Out of memory while trying to allocate {@requested} with allocator GPU_0_bfc on device 0.",
    "Out of host memory while trying to allocate {#requested} bytes. Please set",
    "Failed to allocate {#requested} bytes for new constant",
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate {@requested}.",
    "cuMemAllocAsync failed to allocate {#requested} bytes: x\n Reported by CUDA: Free "
    "memory/Total memory: {#free}/{#limit}\nE gpu_cudamallocasync_allocator.cc:364] Stats:",
    "Not enough PA budget: pa_allocated=0B, allocation_size={#requested}B, pa_budget={#limit}B",
    "could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED\nMemory usage: {#free} bytes free, "
    "{#limit} bytes total.",
    "Failed to allocate a {#requested}-byte pinned host staging buffer for a transfer.",
    "Out of memory allocating {#requested} bytes.",
)
FIGURES = ("requested", "used", "limit", "free", "largest_free", "exceeded_by")


def tpu_size(size_bytes: int, suffix: str = "") -> str:
    """A size as XLA:TPU prints it."""
    power = max(p for p in range(6) if size_bytes >= 1024**p or p == 0)
    if power == 0:
        return f"{size_bytes}B"
    decimals = 1 if power == 1 else 2
    return f"{size_bytes / 1024**power:.{decimals}f}{'BKMGTP'[power]}{suffix}"


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.sampled_from(TEMPLATES),
    st.fixed_dictionaries({name: st.integers(0, 2**50) for name in FIGURES}),
    st.from_regex(r"jit_[A-Za-z0-9_]{1,20}", fullmatch=True),
    st.sampled_from(["hbm", "vmem", "smem", "cmem", "sflag"]),
)
def test_a_wording_with_any_figures_is_read_back(
    template: str, sizes: Mapping[str, int], module: str, memory_space: str
) -> None:
    """The message has each figure of the template within its rounding, and no other figure."""
    printed = {name: tpu_size(size) for name, size in sizes.items()}
    printed |= {f"#{name}": str(size) for name, size in sizes.items()}
    printed |= {f"@{name}": tpu_size(size, "iB") for name, size in sizes.items()}
    text = template.format(**printed, module=module, memory_space=memory_space)
    message = parse_oom(text)
    assert message is not None
    for name, size in sizes.items():
        stated = getattr(message, f"{name}_bytes")
        if not any(f"{{{mark}{name}}}" in template for mark in ("", "#", "@")):
            assert stated is None, name
            continue
        assert abs(stated - size) <= message.resolution_bytes.get(f"{name}_bytes", 0), name
    assert message.module == (module if "{module}" in template else None)
    if "{memory_space}" in template:
        assert message.memory_space == memory_space


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(SAMPLES), st.lists(st.sampled_from(sorted(WRAPPINGS)), max_size=3))
@example("gpu-entry", ["JSON", "JSON of a repr", "JSON of a repr"])  # 31 backslashes in a row
@example("gpu-pool--stats-before", ["bold lines", "bold lines"])
@example("gpu-pool--stats-before", ["bold lines", "JSON"])
@example("tpu-allocation--vmem", ["bold", "bold"])
@example("tpu-largest", ["a box", "repr"])
def test_wrappings_inside_of_each_other_do_not_change_what_is_read(
    name: str, wrappings: list[str]
) -> None:
    """A quoted log of a log gives the same message."""
    text = TEXTS[name]
    for place, wrapping in enumerate(wrappings):
        # Breaking the lines of a log breaks its prefixes and escapes such as "\\n".
        # Source text is read only where nothing else wraps it.
        # A link in a link is read, but not one in a log in a link.
        is_encoded = wrapping in ENCODED
        if is_encoded and not ENCODED.isdisjoint(wrappings[:place]):
            continue
        alone = "broken" in wrapping or wrapping == "source"
        if not alone or (place == 0 and (wrapping != "source" or len(wrappings) == 1)):
            text = WRAPPINGS[wrapping](text)
    assert without_text(parse_oom(text)) == without_text(parse_oom(TEXTS[name]))


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    """Every text gives a message or None."""
    message = parse_oom(text)
    assert message is None or message.text == text
    assert (message is None) == (parse_ooms(text) == ())


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 40), st.text(max_size=8)), max_size=6),
)
def test_a_damaged_message_is_read_without_an_exception(
    name: str, damages: list[tuple[int, int, str]]
) -> None:
    """Lost, repeated and added letters do not make the parser fail."""
    text = TEXTS[name]
    for place, length, more in damages:
        text = text[:place] + more + text[place + length :]
    assert all(isinstance(message, OomMessage) for message in parse_ooms(text))
    assert (parse_oom(text) is None) == (parse_ooms(text) == ())


SIZES = tuple(f.name for f in dataclasses.fields(OomMessage) if f.name.endswith("_bytes"))


# Their sentence ends in a number without unit, so nothing shows that it was cut.
BARE_END = {
    "gpu-driver--context",
    "gpu-alloc-size",
    "gpu-alloc-size--collective",
    "gpu-alloc-size--unified",
    "gpu-async--separated",
    "host-alloc-size",
    "host-alloc-size--2026",
    "host-transfer",
    "neuron--log",
    "neuron-device",
    "unknown-alloc-size",
}
CUT = [name for name in SAMPLES if len(TEXTS[name]) < 3000 and name not in BARE_END]


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
def test_a_text_cut_anywhere_claims_no_figure_that_the_whole_does_not(name: str) -> None:
    """After any cut, a figure is that of the whole text within its rounding, or None."""
    text = TEXTS[name]
    whole = parse_oom(text)
    assert whole is not None
    for cut in range(len(text)):
        message = parse_oom(text[:cut])
        # A buffer without a name is a row that combines small ones.
        assert message is None or all(op.instruction for op in message.ops), text[:cut]
        for field in SIZES if message else ():
            if field != "resolution_bytes" and (size := getattr(message, field)) is not None:
                coarse = message.resolution_bytes.get(field, 0) if message else 0
                allowed = getattr(whole, field)
                assert allowed is not None and abs(size - allowed) <= coarse, (text[:cut], field)
