"""The collectives as torch calls them: each method checks its arguments and says what its rank brings.

The names are those of torch's classes `ProcessGroup` and `Backend`, old and new: torch 2.13 renamed some of them, and
C++ looks for either. Each takes the long form (lists and an options object) and the short one (a tensor and values).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import Tensor

from simulator.arguments import Arguments
from simulator.backends import BackendModel, seconds
from simulator.collectives import Entry, Terms, below_torch, op_name, split_rows
from simulator.work import SimWork


class CollectiveCalls:
    """The part of a process group that torch's collectives call."""

    model: BackendModel
    _group_rank: int
    _checks: Arguments | None = None

    if TYPE_CHECKING:  # the other base class has these; defining them here would hide them

        def size(self) -> int: ...

        def _join(self, entry: Entry) -> SimWork: ...

    @property
    def _must(self) -> Arguments:
        size = self.size()
        if self._checks is None or self._checks.size != size:
            self._checks = Arguments(self.model, size)
        return self._checks

    def _raw(self, *tensors: Tensor) -> Sequence[Tensor]:
        return tensors if self.model.strides == "ignore" else ()

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        held = _listed(tensors)
        self._must.not_empty("allreduce", held)
        name, factor = _reduction(opts)
        if held[0].is_sparse and name != "SUM":
            text = "unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)"
            raise self.model.refuse("allreduce", text)
        self._must.contiguous(held)
        raw = () if held[0].is_sparse else self._raw(*held)
        return self._join(
            Entry("all_reduce", held, held, reduce=name, factor=factor, raw=raw, terms=_terms(opts, timeout))
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        self._must.not_empty("allreduce_coalesced", tensors)
        self._must.one_dtype("allreduce_coalesced", tensors)
        self._must.dense("allreduce_coalesced", tensors)
        name, factor = _reduction(opts)
        return self._join(
            Entry("all_reduce", tensors, tensors, reduce=name, factor=factor, terms=_terms(opts))
        )  # fmt: skip

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        held, root = _listed(tensors), _root(opts)
        self._must.root("broadcast", root)
        self._must.dense("broadcast", held)
        return self._join(Entry("broadcast", held, held, root=root, raw=self._raw(*held), terms=_terms(opts, timeout)))

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> SimWork:
        held, root = _listed(tensors), _root(opts)
        self._must.root("reduce", root)
        self._must.dense("reduce", held)
        name, factor = _reduction(op if isinstance(opts, int) else opts)
        raw, terms = self._raw(*held), _terms(opts, timeout)
        return self._join(Entry("reduce", held, held, reduce=name, root=root, factor=factor, raw=raw, terms=terms))

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        rows, held = _rows(output_lists), _listed(inputs)
        self._must.lists("allgather", rows, held)
        return self._join(Entry("all_gather", held, [t for row in rows for t in row], terms=_terms(opts, timeout)))

    def allgather_coalesced(self, output_lists: Any, inputs: list[Tensor], opts: Any = None) -> SimWork:
        """`output_lists` holds, for each rank, one tensor per input."""
        self._must.coalesced_lists("allgather_coalesced", output_lists, inputs)
        outputs = [output_lists[rank][index] for index in range(len(inputs)) for rank in range(self.size())]
        return self._join(Entry("all_gather", inputs, outputs, terms=_terms(opts)))

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SimWork:
        self._must.all_gather_single(output, source)
        parts = self._parts(output)
        self._must.lists("allgather", [parts], [source])
        return self._join(Entry("all_gather", [source], parts, terms=_terms(opts)))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        parts = [self._parts(output) for output in outputs]
        for row, output, source in zip(parts, outputs, inputs, strict=True):
            self._must.all_gather_single(output, source)
            self._must.lists("allgather_coalesced", [row], [source])
        return self._join(Entry("all_gather", inputs, [t for row in parts for t in row], terms=_terms(opts)))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _parts(self, whole: Tensor) -> list[Tensor]:
        """`whole` in one piece per rank: by rows where the backend insists on shapes, else by elements."""
        with below_torch():
            if not self.model.equal_shapes and whole.is_contiguous():
                whole = whole.view(-1)
            if whole.dim() and not whole.shape[0]:
                return [whole] * self.size()
            return list(whole.chunk(self.size()))

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        held, root = _listed(inputs), _root(opts)
        rows = _rows(output_lists)[0] if output_lists else []
        self._must.root("gather", root)
        self._must.dense("gather", held)
        self._must.rooted_list("gather", self._group_rank == root, rows, held[0], "output")
        return self._join(Entry("gather", held, list(rows), root=root, terms=_terms(opts, timeout)))

    def gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SimWork:
        here = self._group_rank == _root(opts)
        return self.gather([self._parts(output)] if here else [], [source], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        held, root = _listed(outputs), _root(opts)
        rows = _rows(input_lists)[0] if input_lists else []
        self._must.root("scatter", root)
        self._must.dense("scatter", held)
        self._must.rooted_list("scatter", self._group_rank == root, rows, held[0], "input")
        raw, terms = self._raw(*rows, *held), _terms(opts, timeout)
        return self._join(Entry("scatter", list(rows), held, root=root, raw=raw, terms=terms))

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        lists, held = _rows(input_lists), _listed(outputs)
        name, factor = _reduction(opts)
        for row, output in zip(lists, held, strict=True):
            self._must.reduce_scatter_list(row)
            self._must.alike("reduce_scatter", [row[self._group_rank]], output)
        flat, terms = [t for row in lists for t in row], _terms(opts, timeout)
        return self._join(Entry("reduce_scatter", flat, held, reduce=name, factor=factor, terms=terms))

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SimWork:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        for output, source in zip(outputs, inputs, strict=True):
            self._must.reduce_scatter_single(output, source)
        name, factor = _reduction(opts)
        parts = [part for source in inputs for part in self._parts(source)]
        return self._join(
            Entry("reduce_scatter", parts, outputs, reduce=name, factor=factor, terms=_terms(opts))
        )  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        self._must.all_to_all_lists("alltoall", outputs, inputs)
        return self._join(Entry("all_to_all", inputs, outputs, terms=_terms(opts)))

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        out_splits: list[int],
        in_splits: list[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> SimWork:
        size = self.size()
        self._must.dense("alltoall_base", [output, source])
        if not source.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        with below_torch():
            sent, got = split_rows(source, in_splits, size), split_rows(output, out_splits, size)
        terms = _terms(opts, timeout)
        return self._join(Entry("all_to_all_single", sent, got, raw=self._raw(output), terms=terms))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        return self._join(Entry("barrier", [], [], terms=_terms(opts, timeout)))


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _rows(lists: Any) -> list[Sequence[Tensor]]:
    """A list of lists of tensors, also from the one list that the short forms take."""
    return [lists] if lists and isinstance(lists[0], Tensor) else list(lists)


def _root(opts: Any) -> int:
    return opts if isinstance(opts, int) else int(opts.rootRank)


def _terms(opts: Any, timeout: timedelta | None = None) -> Terms:
    """How one call is made: its own time-out, if it was given one; who gives no options gets a handle."""
    return Terms(seconds(timeout) or seconds(getattr(opts, "timeout", None)), bool(getattr(opts, "asyncOp", True)))


def _reduction(opts: Any) -> tuple[str, Any]:
    """The name of a reduction, and the factor of PREMUL_SUM (torch hides it in the ReduceOp's state)."""
    if opts is None:
        return "SUM", None
    reduce_op = getattr(opts, "reduceOp", opts)
    name = op_name(reduce_op)
    factor = reduce_op.__getstate__()[1] if name == "PREMUL_SUM" else None
    return name, factor
