"""Samples of one prompt: they compute it once and share its blocks, the last one too, which it may fill only in part."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.kvcache.block_table import Prefix
from octavo.kvcache.sequence_table import SequenceTable
from octavo.protocol.errors import InvalidRequestError
from octavo.scheduling.request import Request


class SampleGroup:
    """The requests that sample one prompt.

    The first to be admitted is the `leader` while it computes the prompt, and the others wait for it. Then `held` keeps the prompt's blocks
    as they are for the samples `to_come`: each begins with them, and whoever writes to the last one while others have it gets a copy of
    it. So n samples make n − 1 copies of one block if the prompt ends inside of it, and none otherwise. A leader that leaves before it is
    done is followed by the next sample.
    """

    __slots__ = ("held", "leader", "members", "num_running", "prompt_token_ids", "to_come")

    def __init__(self, prompt_token_ids: list[int]) -> None:
        self.prompt_token_ids = prompt_token_ids
        self.members: set[Request] = set()
        self.to_come: set[Request] = set()
        self.num_running = 0
        self.leader: Request | None = None
        self.held: SequenceTable | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def prefix(self) -> Prefix | None:
        """The prompt's blocks, if they are held."""
        held = self.held
        return None if held is None else held.prefix(self.num_prompt_tokens)


class SampleGroups:
    """The groups of requests that are not over. A request without a group is none of their business."""

    __slots__ = ("_by_id", "_holding")

    def __init__(self) -> None:
        self._by_id: dict[str, SampleGroup] = {}
        self._holding: dict[SampleGroup, None] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def held(self) -> Iterator[tuple[SequenceTable, int]]:
        """Tables that groups hold, each with the number of its tokens."""
        return ((group.held, group.num_prompt_tokens) for group in self._holding if group.held is not None)

    def of(self, request: Request) -> SampleGroup | None:
        """The request's group."""
        return None if request.group_id is None else self._by_id.get(request.group_id)

    def join(self, request: Request, prompt_token_ids: list[int]) -> None:
        """Takes in a new request. Raises InvalidRequestError if the others of its group have another prompt."""
        if request.group_id is None:
            return
        group = self._by_id.get(request.group_id)
        if group is None:
            group = self._by_id[request.group_id] = SampleGroup(prompt_token_ids)
        if group.prompt_token_ids != prompt_token_ids:
            raise InvalidRequestError(f"the samples of group {request.group_id!r} have different prompts", param="group_id")
        group.members.add(request)
        group.to_come.add(request)

    def admitted(self, request: Request) -> None:
        """The request runs now, with the blocks that it found."""
        group = self.of(request)
        if group is None:
            return
        group.num_running += 1
        # One that tells of the prompt computes it although its blocks may be held.
        if request.num_in_cache < group.num_prompt_tokens and group.held is None:
            group.leader = request
        self._settle(group, request)

    def computed(self, request: Request) -> None:
        """A step of the request has ended well."""
        group = self.of(request)
        if group is None or group.leader is not request or request.num_in_cache < group.num_prompt_tokens:
            return
        group.leader = None
        if group.to_come:
            group.held = request.table.fork(group.num_prompt_tokens, owner=request.group_id or "")
            # Each sample computes the prompt's last token.
            group.held.slide(group.num_prompt_tokens - 1)
            self._holding[group] = None

    def stopped(self, request: Request) -> None:
        """The request has left the running ones."""
        group = self.of(request)
        if group is not None:
            group.num_running -= 1
            if group.leader is request:
                group.leader = None

    def over(self, request: Request) -> None:
        """The request is over, whether it ran or waited."""
        group = self.of(request)
        if group is not None and request.group_id is not None:
            group.members.discard(request)
            self._settle(group, request)
            if not group.members:
                del self._by_id[request.group_id]

    def give_up_one(self, *, idle: bool = True, keep: SampleGroup | None = None) -> bool:
        """Makes the group that began to hold blocks last give them up: samples to come take what they find then, or compute it. False if
        there is none. With `idle` only groups without a running sample count (one that runs holds nearly all of them itself); never
        `keep`."""
        for group in reversed(self._holding):
            if group is not keep and not (idle and group.num_running):
                self._give_up(group)
                return True
        return False

    def _give_up(self, group: SampleGroup) -> None:
        if group.held is not None:
            group.held.release()
            group.held = None
            del self._holding[group]

    def _settle(self, group: SampleGroup, request: Request) -> None:
        """One sample fewer is to come, if it was; the blocks are held for the others only."""
        group.to_come.discard(request)
        if not group.to_come:
            self._give_up(group)
