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
        // Made within the runtime: elsewhere a timer can't be made.
        self.ask(async move { tokio::time::sleep(wait).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::ReplOffset;
    use crate::pipeline::feed::Budget;

    #[test]
    fn pause_on_a_plain_thread_waits_and_breaks_off_at_the_streams_end() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let feed = Arc::new(Feed::new(None, ReplOffset(0), None, &Budget { memory_bytes: 1 << 20, spool: None }));
        let asking = Asking::new(runtime.handle().clone(), Arc::clone(&feed));
        assert_eq!(asking.pause(Duration::from_millis(1)), Some(()));
        feed.end();
        assert_eq!(asking.pause(Duration::from_secs(60)), None);
    }
}
