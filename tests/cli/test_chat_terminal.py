"""`octavo chat` as a person at a terminal sees it."""

from terminal import Terminal


def test_streams_an_answer_and_leaves_at_ctrl_d():
    with Terminal("chat") as screen:
        screen.expect("/help lists commands")
        screen.expect("> ")
        screen.type("hello there\n")
        screen.expect("< hello there > ")
        screen.expect("> ")
        screen.type("\x04")
        screen.expect("[closed]")
        assert screen.wait() == 0


def test_history_reset_and_system_prompt():
    with Terminal("chat", "--system", "be brief") as screen:
        screen.expect("> ")
        screen.type("one\n")
        screen.expect("< one >")
        screen.type("history\n")
        screen.expect("< system:be_brief|user:one|assistant:<_one_>_|user:history >")
        screen.type("/reset\n")
        screen.expect("(forgotten)")
        screen.type("/system talk like a pirate\n")
        screen.expect("(system prompt set)")
        screen.type("history\n")
        screen.expect("< system:talk_like_a_pirate|user:history >")
        screen.type("/system\n")
        screen.expect("(no system prompt)")
        screen.type("/reset\n")
        screen.expect("(forgotten)")
        screen.type("history\n")
        screen.expect("< user:history >")
        screen.type("/quit\n")
        assert screen.wait() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program():
    with Terminal("chat") as screen:
        screen.expect("> ")
        screen.type("slow\n")
        screen.expect("zzz")
        screen.type("\x03")
        screen.expect("[freed]")
        screen.expect("(stopped)")
        screen.expect("> ")
        screen.type("history\n")
        kept = screen.expect(" >")
        assert "user:slow|assistant:<_slow_>_zzz" in kept
        screen.expect("> ")
        screen.press("\x03", "leaves)")
        screen.type("/quit\n")
        assert screen.wait() == 0


def test_an_error_ends_only_that_answer_and_is_not_kept():
    with Terminal("chat") as screen:
        screen.expect("> ")
        screen.type("fail\n")
        screen.expect("error: the prompt is too long")
        screen.type("history\n")
        screen.expect("< user:history >")
        screen.type("/quit\n")
        assert screen.wait() == 0


def test_commands_that_help():
    with Terminal("chat") as screen:
        screen.expect("> ")
        screen.type("/help\n")
        screen.expect("/system TEXT")
        screen.type("/nonsense\n")
        screen.expect("no command /nonsense")
        screen.type(" /etc/passwd\n")
        screen.expect("< /etc/passwd >")
        screen.type("cut\n")
        screen.expect("(cut off")
        screen.type("/exit\n")
        assert screen.wait() == 0


def test_a_model_can_not_control_the_terminal():
    with Terminal("chat", "--quick", "escape") as screen:
        assert screen.wait() == 0
        assert "]0;titleok" in screen.text
        assert "\x1b]0" not in screen.text


def test_ctrl_c_ends_complete_with_130():
    with Terminal("complete", "slow") as screen:
        screen.expect("zzz")
        screen.type("\x03")
        assert screen.wait() == 130
        assert "Traceback" not in screen.text
        assert "[closed]" in screen.text
