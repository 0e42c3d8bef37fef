"""OVQ-attention: attention to a dictionary of centroids and to the tokens of the current chunk."""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from .._library import call
from ..arguments import offsets_of
from ..paths import compiling, without_autocast
from ..state import OPTIONS, State, States, as_stored, continued
from .dictionary import Dictionary
from .inputs import LARGEST_WEIGHT, Beta, by_head, check, check_attention, check_values, factors, wide


def ovq_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    *,
    weights: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    state: Optional[States] = None,
    return_state: bool = False,
    assignments: Optional[Tensor] = None,
    **options: Any,
) -> Union[Tensor, Tuple[Tensor, States]]:
    """Attention to a dictionary D of centroids and to the tokens K, V of the chunk up to t.

        o_t = softmax(beta q_t [D_k; K]^T + [log counts; 0]) [D_v; V]

    A complete chunk joins the dictionary: the tokens that it knows least become centroids, the others move their
    nearest one (Dictionary.write).

    `assignments` [B, pending + T, Hkv] gives the choices: a token joins the centroid a, or founds ~a where a < 0. Not
    with cu_seqlens.
    """
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"[ovq_attention] unknown option {name!r}; must be one of {list(OPTIONS)}")
    before = None if state is None else continued("ovq_attention", state, cu_seqlens, "formula", options)
    o, after = run("ovq_attention", q, k, v, beta, weights, cu_seqlens, before, options, assignments)
    if not return_state:
        return o
    return o, State(after[0]) if cu_seqlens is None else [State(one) for one in after]


def run(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    weights: Optional[Tensor],
    cu_seqlens: Optional[Tensor],
    before: Optional[List[Dictionary]],
    options: Dict[str, Any],
    assignments: Optional[Tensor] = None,
) -> Tuple[Tensor, List[Dictionary]]:
    """o, and the dictionaries after it: one for the batch, or one for each packed sequence."""
    sizes = check_attention(op, q, k, v)
    if sizes["Tk"] != sizes["T"]:
        raise ValueError(f"[{op}] k has time {sizes['Tk']}; must equal q's {sizes['T']}")
    check(op, {"q": (q, "B T Hq K")}, {"weights": (weights, "?B T Hkv")}, sizes)
    if weights is not None:
        expected = "positive and finite, at most 1e+30"
        check_values(op, "weights", weights, lambda x: (x > 0) & (x <= LARGEST_WEIGHT), expected)
    packed = cu_seqlens is not None
    offsets = offsets_of(op, cu_seqlens, sizes["B"], sizes["T"]) if packed else [0, sizes["T"]]
    dtype, (q, k, v, w) = q.dtype, wide(q, k, v, weights)
    if before is None:
        options = {name: as_stored(value) for name, value in {**OPTIONS, **options}.items()}
        check_options(op, options, sizes, w is not None)
        dictionaries = [Dictionary.empty(sizes["B"], k, v, w, options) for _ in offsets[1:]]
    else:
        check_states(op, before, k, v, w, len(offsets) - 1, packed)
        dictionaries = [one.map(lambda x: x) for one in before]
        for one in dictionaries:
            one.options = {**one.options, "centroids": options.get("centroids", one.options["centroids"])}
            check_options(op, one.options, sizes, w is not None)
    q = q * factors(op, beta, q).unsqueeze(-1)
    with without_autocast(q):
        outputs = [q.new_zeros(sizes["B"], 0, sizes["Hq"], sizes["V"])]
        for one, begin, end in zip(dictionaries, offsets, offsets[1:]):
            part = [x if x is None else x[:, begin:end] for x in (q, k, v, w)]
            outputs.append(attend(one, *part, assignments))
    return torch.cat(outputs, 1).to(dtype), dictionaries


def attend(
    dictionary: Dictionary, q: Tensor, k: Tensor, v: Tensor, w: Optional[Tensor], assignments: Optional[Tensor]
) -> Tensor:
    """o [B, T, Hq, dv]; the dictionary moves on."""
    queries, keys, values, masses = by_head(q), by_head(k), by_head(v), None if w is None else by_head(w)
    chunk, lag = dictionary.options["chunk"], dictionary.options["chunk"] if dictionary.options["rope"] else 0
    first = dictionary.position - dictionary.pending_keys.shape[2]  # the token that assignments begin with
    outputs = [queries.new_zeros(*queries.shape[:2], 0, v.shape[3])]
    for border in range(-(dictionary.position % chunk), q.shape[1], chunk):
        begin, end = max(0, border), min(q.shape[1], border + chunk)
        mass = None if masses is None else masses[:, :, begin:end]
        dictionary.append(keys[:, :, begin:end], values[:, :, begin:end], mass)
        outputs.append(dictionary.read(queries[:, :, begin:end]))
        written = dictionary.position - lag
        if written % chunk == 0 and written > 0:
            given = None if assignments is None else assignments[:, written - chunk - first : written - first]
            dictionary.write(written, None if given is None else by_head(given.long()))
    return by_head(torch.cat(outputs, 2))


def check_options(op: str, options: Dict[str, Any], sizes: Dict[str, int], weighted: bool) -> None:
    """As the kernels check them."""
    if compiling():
        return
    shape = (sizes["Hkv"], sizes["K"], sizes["V"])
    try:
        call("ovq_state_bytes", *shape, *(options[name] for name in OPTIONS), weighted, op=op)
    except ValueError as error:
        raise ValueError(str(error).replace("[ovq]", f"[{op}]")) from None


def check_states(
    op: str, states: List[Dictionary], k: Tensor, v: Tensor, w: Optional[Tensor], count: int, packed: bool
) -> None:
    if len(states) != count:
        expected = f"{count}, one per packed sequence" if packed else "1, for the whole batch"
        raise ValueError(f"[{op}] states has {len(states)} elements; must be {expected}")
    for i, state in enumerate(states):
        has = (state.keys.shape[0], state.keys.shape[1], state.keys.shape[3], state.values.shape[3])
        shape = (k.shape[0], k.shape[2], k.shape[3], v.shape[3])
        if has != shape:
            found = "batch {}, {} kv heads, key dim {}, value dim {}".format(*has)
            raise ValueError(f"[{op}] states[{i}] is for {found}; must be {', '.join(map(str, shape))}")
        if (state.keys.dtype, state.keys.device) != (k.dtype, k.device):
            found, expected = f"{state.keys.dtype} on {state.keys.device}", f"{k.dtype} on {k.device}"
            raise ValueError(f"[{op}] states[{i}] is {found}; must be {expected}")
        if state.weighted != (w is not None):
            found = "with weights; weights are missing" if state.weighted else "without weights; weights are given"
            raise ValueError(f"[{op}] states[{i}] was made {found}")
