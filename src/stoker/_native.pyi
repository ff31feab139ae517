"""Types of the C++ extension (sources in native/). Only `backends.native` imports it."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

_Bytes: TypeAlias = Buffer | NDArray[np.uint8]
"""numpy says only from Python 3.12 on that its arrays are buffers."""

LAYOUT_VERSION: int
"""Changes whenever packed matrices of an earlier version can no longer be read."""

def can_pack(type: int, columns: int) -> bool:
    """Whether there are kernels for GGML type number `type` with rows of `columns`."""

def packed_bytes(type: int, rows: int, columns: int) -> int:
    """Size of a packed matrix; a multiple of 64. Tiles of 16 rows are equally large and lie one after the other."""

def pack(type: int, source: _Bytes, rows: int, columns: int, packed: _Bytes) -> None:
    """Packs a whole matrix, or any rows of one from a multiple of 16 on. Releases the GIL.

    Raises:
        ValueError: a buffer is too small or the type cannot be packed.
    """

def kernel_names() -> list[str]:
    """The kernels that this CPU can run, slowest first; `scalar` is always there."""

def best_kernels() -> str:
    """The fastest of them, or the one that the environment variable STOKER_NATIVE_KERNELS names.

    Raises:
        RuntimeError: that one cannot run here.
    """

def unpack_row(
    type: int, packed: _Bytes, rows: int, columns: int, row: int, out: NDArray[np.float32], kernels: str = ""
) -> None:
    """Writes one row of a packed matrix, exactly as dequantising the file's row gives it, to `out`, `(columns,)`."""

def matmul(
    type: int,
    packed: _Bytes,
    rows: int,
    columns: int,
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    first_tile: int = 0,
    last_tile: int = -1,
    kernels: str = "",
) -> None:
    """`y = x @ matrix.T` for the outputs of some tiles of 16: x `(n, columns)`, y `(n, rows)`. Releases the GIL."""

def num_maxima(vocab_size: int) -> int:
    """In how many blocks a row of logits is looked at."""

class CompiledRow:
    """How to choose the next token of one request, with the history that it needs."""

    @property
    def num_completion(self) -> int:
        """Tokens chosen so far."""

class RowSampler:
    """Chooses tokens from rows of logits as `stoker.sampling` does, to the bit. One thread uses it at a time.

    Args:
        kernels: by name; not given: the fastest.
    """

    def __init__(self, kernels: str = "") -> None: ...
    @staticmethod
    def open(
        vocab_size: int,
        chain: tuple[float, int, float, float],
        seed: int,
        *,
        biases: Sequence[tuple[int, float]],
        ends: Sequence[int],
        min_tokens: int,
        penalties: tuple[int, float, float, float] | None,
        history: Sequence[int],
    ) -> CompiledRow:
        """Compiles a request, on any thread.

        Args:
            vocab_size: the width of its rows.
            chain: temperature (0 = greedy), top_k (0 = off, with a top_p below 1), top_p, how far below the largest
                logit min_p ends.
            seed: of its random numbers.
            biases: added to logits.
            ends: tokens that must not be chosen before there are
            min_tokens: so many.
            penalties: window (0 = the whole history), repetition, presence, frequency.
            history: the tokens in that window so far.

        Raises:
            ValueError: numbers that cannot be, or token ids outside of the vocabulary.
        """

    def choose(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[Any],
        maxima: NDArray[np.float32] | None = None,
        masks: Sequence[Any] | None = None,
    ) -> list[int]:
        """A token id per row, -1 where nothing can be chosen or nothing is asked for. Releases the GIL for wide rows.

        Args:
            logits: `(rows, vocab_size)`; changed meanwhile, and as before afterwards. So are the maxima.
            rows: a `CompiledRow` or None for each; what is chosen is noted in its history.
            maxima: `(rows, num_maxima(vocab_size))`, as `Decoder.forward` writes them.
            masks: for each row a bit for each token, the lowest of the first word for token 0, set where the token is
                allowed; tokens after the last word are not. None: every token is. Or an object that is asked whether
                the likeliest tokens are allowed, `allows(token_id)`, and for the mask only if that does not decide the
                choice, `mask()`.

        Raises:
            ValueError: not one for each row, or compiled for another vocabulary.
        """

    def guess(self, logits: NDArray[np.float32], rows: Sequence[Any], aheads: Sequence[int]) -> list[int]:
        """As `choose`, what a request would choose as a token after its next one; nothing is noted.

        Args:
            logits: `(rows, vocab_size)`; changed meanwhile, and as before afterwards.
            rows: a `CompiledRow` or None for each.
            aheads: how many tokens of the request come before the one that is guessed, without those in its history.

        Raises:
            ValueError: not one for each row, or compiled for another vocabulary.
        """

    def renew(self, row: NDArray[np.float32], maxima: NDArray[np.float32], token_ids: NDArray[np.intp]) -> None:
        """Takes the maxima of a row again, of the blocks that these tokens are in.

        Raises:
            ValueError: token ids that are not in the row, or maxima of another one.
        """

    def exp_sum(self, row: NDArray[np.float32], peak: float) -> float:
        """The sum of exp(logit - peak); no logit is above `peak`."""

    def largest(self, row: NDArray[np.float32], count: int, maxima: NDArray[np.float32] | None = None) -> list[int]:
        """The ids of the `count` largest possible logits, descending, of equal ones the lowest first. `count` > 0.

        There are none in a row that holds NaN or +inf.
        """

def trim_heap() -> None:
    """Gives memory that was freed back to the system, where the C library can; releases the GIL. A few milliseconds."""

class SharedCores:
    """Seats for the threads that compute, shared by processes; Linux only. A seat is free when its owner dies.

    Args:
        path: an empty file, which is set up, or one that another process has set up.
        num_cores: how many seats there are, if it is set up now.

    Raises:
        RuntimeError: there cannot be shared memory, or the file is something else.
    """

    def __init__(self, path: str, num_cores: int) -> None: ...
    @property
    def size(self) -> int:
        """How many seats there are."""

    def acquire(self) -> int | None:
        """Waits for a seat, behind those who waited before. None: not within two seconds. Releases the GIL."""

    def try_acquire(self) -> int | None:
        """A seat if one is free that nobody waits for."""

    def promise(self) -> bool:
        """Whether somebody waits and nobody has promised it a seat; who gets True must release its own."""

    def release(self, seat: int) -> None:
        """By the thread that took it."""

def write_batch(
    chunks: tuple[tuple[int, int, tuple[int, ...], int, tuple[object, ...], tuple[object, ...], int], ...],
    tokens: NDArray[np.int32],
    rows: NDArray[np.int32],
) -> tuple[int, int, bool, int, bool]:
    """Writes a batch as `Decoder.forward` reads it.

    Args:
        chunks: slot, start, entries, number of rows of logits, adapters, rows of images, shift of rotary positions.
        tokens: at least one place per entry, one chunk's after the other's. The n-th negative entry becomes -1 - n.
        rows: at least `(len(chunks), 4)`: slot, start, length, number of rows.

    Returns:
        How many entries, how many rows of logits, whether any chunk has adapters, how many entries are negative, and
        whether any chunk is shifted.

    Raises:
        ValueError: there is not so much room.
    """

def take_memory_in_turn(nodes: list[int]) -> bool:
    """Has this thread, and those that it starts from now on, take new pages of memory from these nodes (NUMA) in turn.

    Returns:
        False, and nothing changes, if the system does not do that, or a policy was set before (`numactl`).
    """

def run_pool(num_threads: int, sizes: list[int], num_runs: int, held: int = -1) -> tuple[int, int, int]:
    """Runs stages of pieces that only check their order on the threads of a pool of its own; for tests.

    Args:
        num_threads: of the pool.
        sizes: pieces of each stage.
        num_runs: how often all stages are run.
        held: a thread that ends no piece before all others of its stage are done; -1 = all are alike.

    Returns:
        Stages that were opened (one more for each run), writes to lines that other threads write to in the same stage,
        and pieces that were taken from the range of another thread.

    Raises:
        RuntimeError: a piece was not computed once, or before the stage before was done.
    """

class Decoder:
    """A decoder over packed memory, with its KV memory and its threads. One Python thread uses it at a time.

    Args:
        description: what `stoker.backends.native.decoder.describe` makes of a spec.
        memory: packed weights; kept alive as long as the decoder.
        num_pages: of KV.
        num_window_pages: of KV of layers with a window, which have pages of their own; 0 = they have not.
        num_states: slots, of a model with recurrent layers; each keeps a state.
        max_batch_tokens: most rows of one forward pass.
        num_threads: that compute, the caller's included.
        kv_type: `f32`, `f16`, `q8`, `q4`, `q16` or `i16`.
        kernels: their name; not given: the best.
        cores: with which other processes' threads they share the cores.
        cpus: on which CPU the thread on each seat is to stay, or each thread if nothing is shared. Empty: on any.

    Raises:
        ValueError: the description contradicts itself or the memory.
        MemoryError: KV or scratch cannot be had.
    """

    def __init__(
        self,
        description: dict[str, object],
        memory: _Bytes,
        *,
        num_pages: int,
        num_window_pages: int = 0,
        num_states: int = 0,
        max_batch_tokens: int,
        num_threads: int,
        kv_type: str,
        kernels: str = "",
        cores: SharedCores | None = None,
        cpus: list[int] = ...,
        lent: _Bytes | None = None,
        lender: Decoder | None = None,
    ) -> None: ...
    @property
    def page_bytes(self) -> int:
        """Of one page, over all layers."""

    @property
    def window_page_bytes(self) -> int:
        """Of one page of layers with a window; 0 = they have none of their own."""

    @property
    def state_bytes(self) -> int:
        """Of what recurrent layers keep of one slot; 0 = there are none."""

    @property
    def kernels(self) -> str:
        """The name of the kernels that compute."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        chunks: NDArray[np.int32],
        page_tables: NDArray[np.int32],
        logits: NDArray[np.float32],
        hidden: NDArray[np.float32] | None = None,
        maxima: NDArray[np.float32] | None = None,
        adapters: NDArray[np.int32] | None = None,
        scales: NDArray[np.float32] | None = None,
        inputs: NDArray[np.float32] | None = None,
        sees_to: NDArray[np.int32] | None = None,
        rotary: NDArray[np.int32] | None = None,
        joined: NDArray[np.float32] | None = None,
        features: NDArray[np.float32] | None = None,
        extracted: NDArray[np.float32] | None = None,
        logit_hidden: NDArray[np.float32] | None = None,
        window_tables: NDArray[np.int32] | None = None,
    ) -> None:
        """Computes all chunks. Releases the GIL.

        Args:
            tokens: `(num_tokens,)`, chunk after chunk; below 0, row -1 - id of `inputs` in place of an embedding.
            chunks: `(num_chunks, 4)`: slot, start, length, number of last rows that want logits.
            page_tables: `(num_slots, max_pages)`.
            logits: filled; `(rows wanted, vocab_size)`.
            hidden: filled if given; `(num_tokens, hidden_size)` after the last norm.
            maxima: filled if given; `(rows wanted, num_maxima(vocab_size))`, the largest logit of each block of 64; it
                is +inf where one is +inf or NaN.
            adapters: index of a chunk, ascending, and id of an adapter that it is computed with; `(uses, 2)`.
            scales: of each, `(uses,)`.
            inputs: `(rows, hidden_size)`.
            sees_to: `(num_tokens,)`: up to which position each sees, if that is behind its own.
            rotary: `(num_tokens, 3)`: by which positions each is rotated, along time, rows and columns; not given: by
                its own, and so always where a rotation has no axes.
            joined: `(num_tokens, size)`: the hidden states that a draft head joins to the embeddings; only it takes
                them, and always, unless it is given
            features: `(num_tokens, size)`: what these are fused from.
            extracted: `(num_tokens, layers * hidden_size)`: written, what comes into each of the `extracted_layers`.
            logit_hidden: `(rows of logits, hidden_size)`: written, what the head is multiplied with.
            window_tables: as `page_tables`, of layers with a window, if these have pages of their own; pages before
                the window of a chunk's first position may be missing.

        Raises:
            ValueError: token ids, positions, adapters or shapes that cannot be.
        """

    def load_adapter(self, id: int, memory: _Bytes, changes: Sequence[tuple[int, int, bool, float, int, int]]) -> None:
        """Makes a LoRA adapter known, for passes from now on.

        Args:
            id: its number here.
            memory: its matrices, from a multiple of 64 on; kept alive as long as the adapter.
            changes: place (0 = embedding, 1 = head, then of each layer query, key, value, output, gate, up, down), rank
                (a multiple of 8), whether the elements are half floats, scale, and the offsets of A `(rank, inputs)`,
                of the embedding `(vocabulary, rank)`, and of B `(outputs / 16, rank, 16)`.

        Raises:
            ValueError: it does not fit the decoder or the memory.
            MemoryError: there is none.
        """

    def unload_adapter(self, id: int) -> None: ...
    def copy_page(self, source: int, target: int, is_window: bool = False) -> None: ...
    def export_page(self, page: int, into: memoryview | bytearray, is_window: bool = False) -> None:
        """Copies a page to `page_bytes` bytes, or one of windows to `window_page_bytes`."""

    def import_page(self, page: int, data: _Bytes, first: int, last: int, is_window: bool = False) -> None:
        """Takes the positions `first … last-1` of an exported page over; the others stay as they are."""

    def keep_states(self, rows_of_slots: list[tuple[int, int]]) -> None:
        """Of the next pass: after so many rows of a slot's chunk its state is kept, and the rest goes on with another.

        What was said before, and no pass has come to, is forgotten.
        """

    def roll_back_state(self, slot: int) -> None:
        """The slot has the state again that its last pass has kept.

        Raises:
            ValueError: it has kept none.
        """

    def copy_state(self, source: int, target: int) -> None:
        """The target has the state of the source from now on, whatever it had before.

        Raises:
            ValueError: the source has none, since a pass has not ended; or both are the same slot.
        """

    def export_state(self, slot: int, into: _Bytes) -> None:
        """Writes the state of a slot, of `state_bytes`."""

    def import_state(self, slot: int, data: _Bytes, length: int) -> None:
        """The slot has this state from now on, which is that behind `length` positions."""

    def touch_pages(self, first: int, last: int) -> None:
        """Touches the memory of the pages `first … last-1`; what is in it stays. Any thread may call it at any time."""

    def give_back_pages(self, first: int, last: int) -> None:
        """The system has the memory of the pages `first … last-1` again, in which nothing is kept any more.

        Raises:
            ValueError: there are no such pages.
        """

    def close(self) -> None:
        """Joins the threads and frees the memory. Calling it twice is allowed."""
