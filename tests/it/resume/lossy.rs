//! A target that loses what it had acknowledged gets it again.

use super::{finish, following, full_syncs, record, save, source, start, two_databases, until_following};
use crate::load::{Workload, load_bulk};
use crate::server::{Server, replicate_natively};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, until};

#[test]
fn target_restarted_from_older_rdb_gets_its_writes_again() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 5000, 100);
    let load = Workload::start(&a, fastrand::u64(..), 6000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    for _ in 0..3 {
        load.until_sent(3000, HALF_MINUTE);
        save(&b);
        load.until_sent(4000, HALF_MINUTE);
        b.restart();
    }
    load.until_sent(3000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "after three restarts from older files");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
    finish(&a, &b, &[]);
}

/// The file is from a former life of the job, lease and all.
#[test]
fn target_restarted_from_a_file_of_a_former_run_goes_on_with_this_one() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    for _ in 0..3 {
        save(&b);
        a.client().call(&cmd!["INCR", "n"]);
        following(&a, &b, "the first run");
        tool.kill();
        tool = start(&a, &b, &[]);
        a.client().call(&cmd!["INCR", "n"]);
        following(&a, &b, "the second run");
        b.restart();
        a.client().call(&cmd!["INCR", "n"]);
        following(&a, &b, "after the restart from a former run's file");
        tool.must_live();
    }
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// The file is from when the job had another number of lanes: fewer, or more.
#[test]
fn target_restarted_from_a_file_of_another_lane_count_goes_on() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    let load = Workload::start(&a, fastrand::u64(..), 4000, two_databases(&a));
    let mut tool = start(&a, &b, &["--lanes", "4"]);
    until_following(&b, &mut tool);
    let mut target = b.client();
    for lanes in ["7", "2", "5", "1"] {
        load.until_sent(1000, HALF_MINUTE);
        save(&b);
        tool.stop();
        tool = start(&a, &b, &["--lanes", lanes]);
        let wanted = format!(" lanes={lanes} ");
        until(HALF_MINUTE, "the new lane count", || record(&mut target, 0).contains(&wanted));
        load.until_sent(1000, HALF_MINUTE);
        b.restart();
        load.until_sent(1000, HALF_MINUTE);
        target = b.client();
        until(HALF_MINUTE, "the new lane count again", || record(&mut target, 0).contains(&wanted));
    }
    load.stop();
    following(&a, &b, "from files of other lane counts");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// The target's records are gone altogether.
#[test]
fn target_that_comes_back_empty_is_copied_again_said_aloud() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 1000, 100);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    b.restart();
    following(&a, &b, "copied again");
    assert_eq!(full_syncs(&a), 2);
    assert!(tool.text().contains("full sync"), "{}", tool.tail());
    tool.stop();
}

/// The target's replica takes over without the last writes, behind an address that stays.
#[test]
fn target_failover_to_a_lagging_replica_gets_its_writes_again() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let replica = Server::start("redis-7.0");
    replicate_natively(&b, &replica);
    let line = crate::line::Line::to(b.port);
    let load = Workload::start(&a, fastrand::u64(..), 5000, two_databases(&a));
    let (from, to) = (a.url(), format!("redis://127.0.0.1:{}", line.port));
    let mut tool = Tool::run(&["sync", &from, &to, "--job", "resume"]);
    until_following(&b, &mut tool);
    load.until_sent(5000, HALF_MINUTE);
    replica.pause();
    load.until_sent(6000, HALF_MINUTE);
    // The replica never gets what it hasn't by now.
    b.pause();
    replica.resume();
    replica.client().call(&cmd!["REPLICAOF", "NO", "ONE"]);
    line.turn_to(replica.port);
    load.until_sent(5000, HALF_MINUTE);
    load.stop();
    b.resume();
    following(&a, &replica, "after the target's failover");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}
