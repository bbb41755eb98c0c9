"""Messages of threads for the sampler's loop."""

import select

from chiplog_agent.stats.post_box import PostBox


def test_a_post_wakes_its_reader_and_messages_keep_their_order() -> None:
    box = PostBox()
    assert select.select([box], [], [], 0)[0] == []
    box.post(["line", "a"], ["line", "b"])
    box.post(["line", "c"])
    assert select.select([box], [], [], 0)[0] == [box]
    box.drain()
    assert list(box.messages) == [["line", "a"], ["line", "b"], ["line", "c"]]
    assert select.select([box], [], [], 0)[0] == []
    box.close()
    box.post(["line", "of a thread that was still reading"])
    assert len(box.messages) == 3
