//! Acknowledgements: what the source is told.

use super::{following, source, start, until_following};
use crate::server::Server;

#[test]
fn ack_tells_what_is_applied() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut target = b.client();
    for i in 1..20 {
        client.call(&cmd!["SET", "n", i]);
        assert_eq!(client.call(&cmd!["WAIT", 1, 10_000]).int(), 1);
        assert_eq!(target.get("n").text(), i.to_string(), "WAIT told what isn't there");
    }
    b.pause();
    client.call(&cmd!["SET", "n", "held back"]);
    assert_eq!(client.call(&cmd!["WAIT", 1, 1500]).int(), 0);
    b.resume();
    assert_eq!(client.call(&cmd!["WAIT", 1, 10_000]).int(), 1);
    assert_eq!(target.get("n").text(), "held back");
    tool.stop();
}

#[test]
fn ack_received_tells_what_has_come() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &["--ack", "received"]);
    until_following(&b, &mut tool);
    b.pause();
    client.call(&cmd!["SET", "n", 1]);
    assert_eq!(client.call(&cmd!["WAIT", 1, 10_000]).int(), 1);
    b.resume();
    following(&a, &b, "after the pause");
    tool.stop();
}
