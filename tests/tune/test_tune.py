"""A/B verdicts and the tune database."""

import itertools

import pytest

from plow.compile import Options
from plow.errors import ConfigError
from plow.tune import database
from plow.tune.ab import compare, judge
from plow.tune.choices import apply_tuned


def arm(*seconds):
    series = itertools.cycle(seconds)
    return lambda: next(series)


def test_a_clear_gain_is_a_win_and_a_clear_loss_a_loss():
    assert compare(arm(1.0, 1.01), arm(0.5, 0.51), 4).verdict == "win"
    r = compare(arm(0.5, 0.51), arm(1.0, 1.01), 4)
    assert r.verdict == "loss" and 0.45 < r.ratio < 0.55


def test_a_gain_inside_the_noise_is_not_convictable():
    """The two controls differ by more than the gain."""
    assert judge([1.0, 1.0], [1.1, 1.1], [1.02, 1.02], [1.02, 1.02]).verdict == "not convictable"
    assert judge([1.0, 1.0], [1.0, 1.0], [0.9, 0.9], [1.09, 1.09]).verdict == "not convictable"


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_measurement_is_a_typed_error(bad):
    with pytest.raises(ConfigError):
        compare(arm(1.0), arm(bad), 2)


def test_one_round_has_no_noise_floor():
    with pytest.raises(ConfigError, match="noise"):
        compare(arm(1.0), arm(1.0), 1)


def record(option, value, won, baseline=0):
    return database.Record(option, value, baseline, "cpu", "here", "demo", {"ratio": 1.2}, won, "2026-11-30", "bench")


def test_winners_are_read_back_and_losers_keep_the_baseline(tmp_path):
    db = tmp_path / "tune.jsonl"
    database.append(db, record("workers", 2, True, 1))
    database.append(db, record("prefetch_bytes", 4096, False, 8192))
    won = database.winners(db, "cpu")
    assert (
        won["workers"]["value"] == 2 and won["prefetch_bytes"]["value"] == 8192 and database.winners(db, "h200") == {}
    )
    options = Options()
    assert len(apply_tuned(options, db)) == 2
    assert (
        options.workers == 2
        and options.interpreter == {"prefetch_bytes": 8192}
        and options.sources["workers"].startswith("tune ")
    )


def test_what_the_user_sets_wins_over_the_database(tmp_path):
    db = tmp_path / "tune.jsonl"
    database.append(db, record("workers", 2, True, 1))
    options = Options(workers=1)
    assert apply_tuned(options, db) == [] and options.workers == 1


def test_an_edited_record_is_a_typed_error(tmp_path):
    db = tmp_path / "tune.jsonl"
    database.append(db, record("workers", 2, False, 1))
    db.write_text(db.read_text().replace('"won": false', '"won": true'))
    with pytest.raises(ConfigError, match="digest"):
        database.read(db)


def test_a_missing_database_is_a_typed_error(tmp_path):
    with pytest.raises(ConfigError, match="no such"):
        database.winners(tmp_path / "none.jsonl", "cpu")


def test_a_busy_machine_is_told_from_a_quiet_one(monkeypatch):
    from plow.tune import machine

    monkeypatch.setattr(machine, "SAMPLE_S", 0.0)
    for spent, busy in (((90, 100), 0.9), ((1, 100), 0.01)):
        times = iter([(0, 0), spent] * 3)
        monkeypatch.setattr(machine, "_cpu_times", lambda times=times: next(times))
        assert machine.busy_share() == busy
        assert machine.wait_until_quiet(limit_s=0.0) == busy
