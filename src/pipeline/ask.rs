//! Questions that the decode thread asks of a server, on the tasks' runtime.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::feed::Feed;

/// Runs the thread's questions, and gives up when the stream ends: nobody would use the answer.
#[derive(Clone)]
pub struct Asking {
    runtime: Handle,
    feed: Arc<Feed>,
}

impl Asking {
    pub fn new(runtime: Handle, feed: Arc<Feed>) -> Self {
        Asking { runtime, feed }
    }

    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The answer, or `None` when the stream has ended first. Blocks the thread.
    pub fn ask<T>(&self, question: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                answer = question => Some(answer),
                () = self.feed.ended() => None,
            }
        })
    }

    /// Waits; `None` if the stream ends meanwhile.
    pub fn pause(&self, wait: Duration) -> Option<()> {
        self.ask(tokio::time::sleep(wait))
    }
}
