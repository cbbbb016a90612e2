//! Expiry: the source decides, however long the target or keyferry stood still.

use super::{finish, following, full_syncs, source, start, until_following};
use crate::client::Client;
use crate::compare::{GRACE_MS, Rules, now_ms, until_same};
use crate::server::Server;
use crate::wait::{HALF_MINUTE, until};

/// Keys renewed in their last moments, counters that are built upon, and some that aren't renewed.
fn short_lived(client: &mut Client, n: u32, ms: u32) {
    let batch: Vec<_> = (0..n)
        .flat_map(|i| [cmd!["SET", format!("renewed:{i}"), i, "PX", ms], cmd!["SET", format!("gone:{i}"), i, "PX", ms]])
        .collect();
    client.load(&batch);
}

fn renew(client: &mut Client, n: u32) {
    let batch: Vec<_> = (0..n)
        .flat_map(|i| [cmd!["INCR", format!("renewed:{i}")], cmd!["PEXPIRE", format!("renewed:{i}"), 500_000 + i]])
        .collect();
    client.load(&batch);
}

fn renewed_live(a: &Server, b: &Server, n: u32) {
    let (mut source, mut target) = (a.client(), b.client());
    until(HALF_MINUTE, "the source to expire the others", || source.call(&cmd!["KEYS", "gone:*"]).list().is_empty());
    following(a, b, "after the expiry");
    for i in 0..n {
        assert_eq!(target.get(&format!("renewed:{i}")).text(), (i + 1).to_string());
    }
}

#[test]
fn renewed_key_lives_while_target_stood_still() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    short_lived(&mut a.client(), 200, 2500);
    let mut target = b.client();
    until(HALF_MINUTE, "the keys", || target.dbsize() > 400);
    b.pause();
    renew(&mut a.client(), 200);
    let mut source = a.client();
    until(HALF_MINUTE, "the others to expire", || source.call(&cmd!["KEYS", "gone:*"]).list().is_empty());
    b.resume();
    renewed_live(&a, &b, 200);
    tool.stop();
    finish(&a, &b, &[]);
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn renewed_key_lives_while_keyferry_was_down() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    short_lived(&mut a.client(), 200, 2500);
    let mut target = b.client();
    until(HALF_MINUTE, "the keys", || target.dbsize() > 400);
    tool.kill();
    renew(&mut a.client(), 200);
    let mut source = a.client();
    until(HALF_MINUTE, "the others to expire", || source.call(&cmd!["KEYS", "gone:*"]).list().is_empty());
    let mut tool = start(&a, &b, &[]);
    renewed_live(&a, &b, 200);
    tool.stop();
    finish(&a, &b, &[]);
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn renewed_hash_field_lives_while_target_stood_still() {
    let (a, b) = (Server::start("redis-8.0"), Server::start("redis-8.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut source = a.client();
    source.load(&[
        cmd!["HSET", "h", "renewed", 1, "gone", 1, "stays", 1],
        cmd!["HPEXPIRE", "h", 2000, "FIELDS", 2, "renewed", "gone"],
    ]);
    following(&a, &b, "with short-lived fields");
    b.pause();
    source.load(&[cmd!["HINCRBY", "h", "renewed", 1], cmd!["HPEXPIRE", "h", 500_000, "FIELDS", 1, "renewed"]]);
    until(HALF_MINUTE, "the other field to expire", || source.call(&cmd!["HLEN", "h"]).int() == 2);
    b.resume();
    following(&a, &b, "after the field's expiry");
    let value = b.client().call(&cmd!["HGET", "h", "renewed"]);
    assert_eq!(value.text(), "2");
    tool.stop();
    finish(&a, &b, &[]);
}

#[test]
fn expiry_grace_of_zero_writes_times_exactly() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "copied", 1, "PXAT", now_ms() + 900_000]);
    let mut tool = start(&a, &b, &["--expiry-grace", "0"]);
    until_following(&b, &mut tool);
    a.client().load(&[cmd!["SET", "streamed", 1, "EX", 5000], cmd!["EXPIRE", "copied", 700]]);
    until_same(&a, &b, HALF_MINUTE, "exact at once", &Rules::default());
    tool.stop();
    finish(&a, &b, &["--expiry-grace", "0"]);
}

#[test]
fn late_times_are_an_hour_late_and_said() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let at = now_ms() + 900_000;
    a.client().call(&cmd!["SET", "k", 1, "PXAT", at]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    assert_eq!(b.client().call(&cmd!["PEXPIRETIME", "k"]).int(), at + GRACE_MS);
    tool.stop();
    assert!(tool.text().contains("late"), "{}", tool.tail());
    finish(&a, &b, &[]);
    assert_eq!(b.client().call(&cmd!["PEXPIRETIME", "k"]).int(), at);
}
