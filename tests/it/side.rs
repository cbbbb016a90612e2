//! Questions to the source: what a key holds, when it expires, at which offset.

use crate::client::Cmd;
use crate::compare::now_ms;
use crate::server::Server;
use keyferry::net::conn;
use keyferry::net::endpoint::HostPort;
use keyferry::source::side::{Found, Side};

/// A value whose DUMP takes a while.
const LONG_BYTES: usize = 20_000_000;

fn read_keys(server: &Server, keys: &[&str]) -> Vec<Found> {
    let address = HostPort { host: "127.0.0.1".into(), port: server.port };
    let side = keyferry::net::Side::Source;
    let mut side = Side::new(conn::Server { side, address, user: None, password: None, tls: None }.into());
    let asked: Vec<(u32, &[u8])> = keys.iter().map(|key| (0, key.as_bytes())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(side.read_keys(&asked)).expect("an answer").0
}

/// Times are those of the source's clock when each key was read, and not when all were.
#[test]
fn copied_keys_have_their_own_times_whatever_else_is_read_with_them() {
    for name in ["redis-6.0", "redis-7.0"] {
        let server = Server::start(name);
        let mut client = server.client();
        let at = now_ms() + 1_000_000;
        let mut batch: Vec<Cmd> = vec![cmd!["SETRANGE", "long", LONG_BYTES, "x"]];
        let short: Vec<String> = (0..12).map(|n| format!("short:{n}")).collect();
        batch.extend(short.iter().flat_map(|key| [cmd!["SET", key, 1], cmd!["PEXPIREAT", key, at]]));
        client.load(&batch);
        let asked: Vec<&str> = short.iter().flat_map(|key| [key.as_str(), "long"]).collect();
        let found = read_keys(&server, &asked);
        // The last ones have little behind them.
        let late = found.iter().step_by(2).take(8).map(|found| found.expires_at_ms.expect("an expiry") - at);
        let late: Vec<i64> = late.collect();
        // Between two commands the server may stand still, but hardly each time.
        let (least, first) = (*late.iter().min().expect("some"), if name == "redis-7.0" { 0 } else { 2 });
        assert!(late.iter().all(|ms| *ms >= 0) && least <= first, "{name}: {late:?} ms late");
        assert!(found.iter().skip(1).step_by(2).all(|found| found.payload.is_some() && found.expires_at_ms.is_none()));
    }
}
