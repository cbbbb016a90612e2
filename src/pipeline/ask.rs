//! Questions that the decode thread asks of a server, on the tasks' runtime.

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Runs the thread's questions, and gives up when its session ends: nobody would use the answer.
#[derive(Clone)]
pub struct Asking {
    runtime: Handle,
    cancelled: watch::Receiver<bool>,
}

impl Asking {
    pub fn new(runtime: Handle, cancelled: watch::Receiver<bool>) -> Self {
        Asking { runtime, cancelled }
    }

    /// The answer, or `None` when the session has ended. Blocks the thread.
    pub fn ask<T>(&self, question: impl Future<Output = T>) -> Option<T> {
        let mut cancelled = self.cancelled.clone();
        self.runtime.block_on(async {
            tokio::select! {
                answer = question => Some(answer),
                // An error means that the session is gone.
                _ = async { cancelled.wait_for(|c| *c).await.is_ok() } => None,
            }
        })
    }

    /// Waits; true if the session has ended.
    pub fn pause(&self, wait: std::time::Duration) -> bool {
        self.ask(tokio::time::sleep(wait)).is_none()
    }
}
