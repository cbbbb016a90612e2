//! A target that restarts from an older file.

use crate::server::Server;
use crate::wait::{HALF_MINUTE, until};
use std::time::{Duration, Instant};

/// How far back an RDB may lie that the target restarts from: the source's backlog must reach there.
const SAVED_AGE_MAX: Duration = Duration::from_secs(20);

/// The file that the target would restart from.
#[derive(Default)]
pub struct RollBack {
    saved: Option<Instant>,
}

impl RollBack {
    /// Whether there is none, or one that lies too far back.
    pub fn is_old(&self) -> bool {
        self.saved.is_none_or(|at| at.elapsed() > SAVED_AGE_MAX)
    }

    pub fn age(&self) -> Duration {
        self.saved.map_or(Duration::ZERO, |at| at.elapsed())
    }

    pub fn save(&mut self, target: &Server) {
        let mut client = target.client();
        client.call(&cmd!["BGSAVE"]);
        until(HALF_MINUTE, "the target's BGSAVE", || {
            let info = client.info("persistence");
            info.get("rdb_bgsave_in_progress").map(String::as_str) == Some("0")
        });
        self.saved = Some(Instant::now());
    }
}
