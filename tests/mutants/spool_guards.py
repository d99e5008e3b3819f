"""Guards of the spool: what was acknowledged survives, once, and nothing else does."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_SPOOL = "fairlead/spool/"
_DAMAGE = "tests/spool/test_damage.py::"
_DISK = "tests/spool/test_disk.py::"
_LIMITS = "tests/spool/test_limits.py::"
_PROCESSES = "tests/spool/test_processes.py::"
_TESTS = "tests/spool/test_spool.py::"


def _guard(name: str, protects: str, test: str, file: str, old: str, new: str) -> Guard:
    return Guard(name, protects, test, (Mutant(_SPOOL + file, ((old, new),)),))


GUARDS: tuple[Guard, ...] = (
    _guard(
        "a disk that has just answered",
        "a call is not refused because the disk answers while the time is read",
        _DISK + "test_a_disk_that_answers_while_the_time_is_read_does_not_hang",
        "committer.py",
        "time.monotonic() - began) > _HANGS",
        "time.monotonic() - self._began) > _HANGS",
    ),
    _guard(
        "folder that goes",
        "who looks at a spool that is being removed finds nothing, and goes on",
        "tests/spool/test_processes.py::test_a_folder_that_goes_while_it_is_looked_at_has_nothing",
        "inspection.py",
        "        return segments(folder, stream)\n    except OSError:",
        "        return segments(folder, stream)\n    except KeyError:",
    ),
    _guard(
        "checksum of a record",
        "a damaged record is never taken for a sound one",
        _DAMAGE + "test_a_wrong_byte_anywhere_costs_no_other_record[1]",
        "frames.py",
        "    if zlib.crc32(data[offset + 4 : end]) != crc:\n        return None\n",
        "",
    ),
    _guard(
        "search behind damage",
        "one damaged record costs no other",
        _DAMAGE + "test_a_wrong_byte_anywhere_costs_no_other_record[255]",
        "frames.py",
        "place = data.find(header.marker, place + 5) - 4",
        "place = -1",
    ),
    _guard(
        "second header",
        "one damaged byte does not cost a file",
        _DAMAGE + "test_a_wrong_byte_anywhere_costs_no_other_record[255]",
        "frames.py",
        "for offset in (0, HEADER // 2):",
        "for offset in (0,):",
    ),
    _guard(
        "growing numbers",
        "an old record that is in a file once more is not taken",
        _DAMAGE + "test_a_record_with_an_old_number_is_not_taken",
        "frames.py",
        "frame is None or (ordered and frame.sequence <= last)",
        "frame is None",
    ),
    _guard(
        "tail of an earlier file",
        "what is lost there is seen",
        _DAMAGE + "test_a_bad_end_of_a_file_that_is_not_the_last_is_put_aside",
        "recovery.py",
        "if not is_last and result.end < len(data):",
        "if False:",
    ),
    _guard(
        "later version",
        "a file of a later release is not taken for a damaged one",
        _DAMAGE + "test_a_file_of_a_later_version_is_left_alone",
        "recovery.py",
        "if header is not None and not header.is_known:",
        "if False:",
    ),
    _guard(
        "fdatasync",
        "what is acknowledged is on the disk",
        _DISK + "test_a_failed_sync_refuses_all_of_its_group_and_that_file_is_not_used_again",
        "writer.py",
        'files.write(self._fd, b"".join(pieces))\n        files.sync(self._fd)\n',
        'files.write(self._fd, b"".join(pieces))\n',
    ),
    _guard(
        "sync of the folder",
        "the name of a file is on the disk too",
        _DISK + "test_a_new_file_is_acknowledged_once_its_name_is_on_the_disk",
        "writer.py",
        "            files.sync_folder(self.segment.path.parent)\n",
        "            pass\n",
    ),
    _guard(
        "cut after a failure",
        "what was refused does not come back",
        _DISK + "test_a_failed_sync_refuses_all_of_its_group_and_that_file_is_not_used_again",
        "writer.py",
        "                os.ftruncate(self._fd, segment.size)\n",
        "",
    ),
    _guard(
        "mark after a failure",
        "what was refused does not come back where a file cannot be cut",
        _DISK + "test_refused_records_do_not_come_back_if_the_file_cannot_be_cut",
        "writer.py",
        "segment.mark_numbers(refused)",
        "pass",
    ),
    _guard(
        "no trust after a failure",
        "a file whose sync failed is not written to again",
        _DISK + "test_a_failed_sync_refuses_all_of_its_group_and_that_file_is_not_used_again",
        "journal.py",
        "                self._writer = None\n                writer.distrust(sequences)\n",
        "",
    ),
    _guard(
        "removed file",
        "nothing is acknowledged into a file that has no name",
        _DISK + "test_a_folder_that_was_removed_is_noticed_before_anything_is_acknowledged",
        "writer.py",
        "if os.fstat(self._fd).st_nlink == 0:",
        "if False:",
    ),
    _guard(
        "lock of a folder",
        "the spool of a living process is never taken",
        _PROCESSES + "test_two_processes_at_one_root_have_a_folder_each",
        "process_folder.py",
        "if not path.exists() or not lock.try_exclusive():",
        "if not path.exists():",
    ),
    _guard(
        "same lock file",
        "of several adopters one gets a folder",
        _PROCESSES + "test_a_folder_that_was_removed_between_opening_and_locking_is_not_taken",
        "process_folder.py",
        "return os.path.samestat(os.fstat(lock.fd), path.stat())",
        "return True",
    ),
    _guard(
        "fork",
        "a child never writes into its parent's folder",
        _PROCESSES + "test_a_forked_child_has_a_folder_of_its_own",
        "spool.py",
        "        spool._leave()\n",
        "        pass\n",
    ),
    _guard(
        "inherited lock",
        "a child does not keep the lock of a parent that died",
        _PROCESSES + "test_a_child_that_outlives_its_parent_does_not_keep_the_parents_lock",
        "process_folder.py",
        "        for lock in list(self._locks):\n            lock.close()\n",
        "        pass\n",
    ),
    _guard(
        "checkpoints move too",
        "what was confirmed is not drained again by an adopter",
        _PROCESSES + "test_confirmed_records_stay_confirmed_from_adopter_to_adopter",
        "journal.py",
        "if marks.exists():",
        "if False:",
    ),
    _guard(
        "sealed before an adoption",
        "sequences of one process never collide",
        _PROCESSES + "test_own_and_adopted_records_have_different_numbers",
        "journal.py",
        "            self._seal()  # so that sequences grow from one segment to the next\n",
        "",
    ),
    _guard(
        "most records",
        "a full spool refuses",
        _TESTS + "test_a_full_spool_refuses_and_keeps_what_it_has",
        "spool.py",
        "if self._work.depth + self._count + count > limits.max_count:",
        "if False:",
    ),
    _guard(
        "most bytes",
        "a full spool refuses",
        _TESTS + "test_bytes_are_bounded_too",
        "spool.py",
        "if self._work.size + self._size + size > limits.max_bytes:",
        "if False:",
    ),
    _guard(
        "age of a record",
        "what is too old is rejected, not sent and not dropped",
        _TESTS + "test_what_is_too_old_is_rejected_and_seen",
        "spool.py",
        "if self._expiring.acquire(blocking=False)",
        "if False and self._expiring.acquire(blocking=False)",
    ),
    _guard(
        "rejected once",
        "a crash between the two steps of a rejection leaves one record",
        _TESTS + "test_a_crash_between_the_two_steps_of_a_rejection_rejects_once",
        "adoption.py",
        "for found in (*others, *tasks) for link",
        "for found in tasks for link",
    ),
    _guard(
        "completion for submission",
        "what was done here is not sent to be done again",
        _TESTS + "test_a_completion_stands_for_its_submission",
        "journal.py",
        "                over.append(target)\n",
        "                pass\n",
    ),
    _guard(
        "thread that does not start",
        "a process that can have no thread for a moment does not hang later",
        _DISK + "test_a_thread_that_cannot_be_started_refuses_one_call_and_holds_up_no_other",
        "committer.py",
        "            self._ended.release()\n            if",
        "            if",
    ),
    _guard(
        "files of a small spool",
        "a small spool with next to nothing in it is not full",
        _LIMITS + "test_a_small_spool_with_one_record_that_stays_is_not_full",
        "journal.py",
        "min(max(full, _LEAST), _SEGMENT)",
        "_SEGMENT",
    ),
    _guard(
        "broker of a folder",
        "a task never goes to a broker that it is not for",
        _PROCESSES + "test_what_is_for_another_broker_is_left_alone",
        "adoption.py",
        "if meant != home.broker and not any_broker and found_bytes(folder):",
        "if False:",
    ),
    _guard(
        "age by the steady clock",
        "a clock that is set makes no acknowledged record too old",
        _LIMITS + "test_a_clock_that_is_set_makes_nothing_too_old",
        "clock.py",
        "if header.boot == self.boot:",
        "if False:",
    ),
)
