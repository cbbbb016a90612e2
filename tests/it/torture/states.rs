//! States that a server is put into for a while, in which it refuses or is silent.

use crate::client::Client;
use crate::server::{Server, free_port};
use crate::wait::{HALF_MINUTE, until};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    OutOfMemory,
    ReadOnly,
    Busy,
    ClientsPaused,
    /// NOREPLICAS: what the primary of a cluster says when its replica is gone.
    TooFewReplicas,
}

/// Those that a standalone target can be in.
pub const STATES: &[State] = &[State::OutOfMemory, State::ReadOnly, State::Busy, State::ClientsPaused];

/// Those of a cluster's primary.
pub const STATES_OF_NODES: &[State] = &[State::OutOfMemory, State::Busy, State::ClientsPaused, State::TooFewReplicas];

/// A server that is in a state.
#[must_use]
pub struct Entered {
    state: State,
    /// The endless script, and the connection that can end it: a busy server takes no new one.
    script: Option<(JoinHandle<bool>, Client)>,
}

impl State {
    /// Whether the server answers other clients meanwhile.
    pub fn answers(self) -> bool {
        !matches!(self, State::Busy | State::ClientsPaused)
    }

    /// Puts the server into the state, until [`Entered::leave`]; clients are paused for `span`.
    pub fn enter(self, server: &Server, span: Duration, writes_only: bool) -> Entered {
        let mut client = server.client();
        let mut entered = Entered { state: self, script: None };
        match self {
            State::OutOfMemory => _ = client.call(&cmd!["CONFIG", "SET", "maxmemory", 1]),
            State::ReadOnly => _ = client.call(&cmd!["REPLICAOF", "127.0.0.1", free_port()]),
            State::TooFewReplicas => _ = client.call(&cmd!["CONFIG", "SET", "min-replicas-to-write", 2]),
            State::Busy => {
                let mut runner = server.client();
                let script = thread::spawn(move || runner.ask(&cmd!["EVAL", "while true do end", 0]).is_err());
                until(HALF_MINUTE, "a busy target", || client.ask(&cmd!["PING"]).is_err_and(|e| e.contains("BUSY")));
                entered.script = Some((script, client));
            }
            State::ClientsPaused => {
                let mut pause = cmd!["CLIENT", "PAUSE", span.as_millis().to_string()];
                // Which clients: since 6.2.
                let what: &[u8] = if writes_only { b"WRITE" } else { b"ALL" };
                pause.extend((server.version() >= (6, 2)).then(|| what.to_vec()));
                client.call(&pause);
            }
        }
        entered
    }
}

impl Entered {
    pub fn leave(self, server: &Server) {
        let call = |words: &[Vec<u8>]| _ = server.client().call(words);
        match self.state {
            State::OutOfMemory => call(&cmd!["CONFIG", "SET", "maxmemory", 0]),
            State::ReadOnly => call(&cmd!["REPLICAOF", "NO", "ONE"]),
            State::TooFewReplicas => call(&cmd!["CONFIG", "SET", "min-replicas-to-write", 0]),
            // Ends by itself.
            State::ClientsPaused => {}
            State::Busy => {
                let (script, mut client) = self.script.expect("the script that keeps it busy");
                client.call(&cmd!["SCRIPT", "KILL"]);
                assert!(script.join().expect("the script's thread ends"), "the script was killed");
            }
        }
    }
}
