//! Proof of the motion of sets: a model source whose slots move, a model target, and an adversary between them.
//!
//! Against a standalone target the rules of `MotionRules` are taken out one by one, against a cluster the parts of `held`:
//! `cases` has the schedule that breaks without each.
//!
//! | rule taken out | case |
//! |---|---|
//! | `starts_of_all` | unit_noted_of_a_third_shard_is_noted_again_by_a_later_process |
//! | `state_stored` | unit_noted_is_known_to_a_later_process_whose_record_has_passed_it |
//! | `states_reread` | copies_that_a_failover_of_the_target_lost_are_made_again |
//! | `journals_kept` | journal_reaches_back_to_the_starts_of_what_is_in_motion |
//! | `resumes_at_starts` | later_process_begins_at_the_starts |
//! | `received`, `received_of_all` | removal_of_the_loser_just_before_the_hand_over_is_received |
//! | `looked_twice` | import_that_begins_during_the_first_look_is_seen_by_the_second |
//! | `others_dirty` | write_at_a_third_shard_while_a_slot_is_copied_is_noted |
//! | `moves_again` | import_that_begins_while_a_slot_is_copied_moves_it_again |
//! | `guarded` | unit_that_a_copy_has_already_is_left_out |
//! | `whole_when_emptied` | slot_emptied_without_names_is_copied_whole |
//! | `feeder_drained` | nothing_overtakes_what_the_old_feeders_lanes_hold |
//! | `switch_awaited` | unit_of_another_shard_waits_for_the_switch |
//! | `switch_behind_all` | switch_waits_for_what_all_lanes_were_given_of_the_motion |
//! | `switch_on_one_target` | switch_waits_until_every_shard_knows_that_the_target_fell_back |
//! | `switch_behind_copies` | switch_waits_until_the_owners_stream_has_passed_the_copies |
//! | `left_at` (held) | server_that_was_lost_before_the_lanes_gave_the_slot_up_is_noticed |
//! | `checked` (held) | slot_that_began_to_move_before_the_streams_are_followed_is_looked_for |
//! | `given_up`, `one_server`, `strays`, `guards` (held) | `search_seeds_that_break_lanes_to_a_cluster_without_each_part` |
//!
//! `KEYFERRY_PROOF_CASES` sets how many random schedules run, `KEYFERRY_PROOF_SEED` the first one's seed.

mod cases;
mod held;
mod lanes;
mod ops;
mod random;
mod source;
mod world;
