//! Shards that end together: each goes on following until all have what they should.

use std::collections::BTreeSet;

use tokio::sync::watch;

/// Which shards there are, and which have caught up.
#[derive(Debug, Default)]
pub struct Together {
    state: watch::Sender<State>,
}

#[derive(Debug, Default)]
struct State {
    shards: BTreeSet<u32>,
    level: BTreeSet<u32>,
    /// All had caught up at one time: nothing changes that any more.
    ended: bool,
}

impl Together {
    /// One more shard is waited for.
    pub fn join(&self, shard: u32) {
        self.state.send_modify(|state| _ = state.shards.insert(shard));
    }

    /// The shard has left its cluster.
    pub fn leave(&self, shard: u32) {
        self.state.send_modify(|state| {
            state.shards.remove(&shard);
            state.level.remove(&shard);
            state.look();
        });
    }

    /// A session of the shard begins: it has to catch up again.
    pub fn begin(&self, shard: u32) {
        self.state.send_modify(|state| _ = state.level.remove(&shard));
    }

    /// The shard has caught up; returns when all have.
    ///
    /// Cancel-safe.
    pub async fn level(&self, shard: u32) {
        self.state.send_modify(|state| {
            state.level.insert(shard);
            state.look();
        });
        // The sender lives as long as this.
        let _ = self.state.subscribe().wait_for(|state| state.ended).await;
    }

    /// True from when all had caught up: no shard begins any more.
    pub fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }
}

impl State {
    fn look(&mut self) {
        self.ended |= !self.shards.is_empty() && self.shards == self.level;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_over(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn shards_end_when_all_have_caught_up_at_one_time() {
        let together = Together::default();
        (0..3).for_each(|shard| together.join(shard));
        let (mut first, mut second) = (pin!(together.level(0)), pin!(together.level(1)));
        assert!(!is_over(first.as_mut()) && !is_over(second.as_mut()));
        // One that has to begin again is waited for, and one that has left isn't.
        together.begin(1);
        together.leave(2);
        assert!(!is_over(first.as_mut()));
        assert!(is_over(pin!(together.level(1))));
        assert!(is_over(first.as_mut()) && together.has_ended());
        together.begin(0);
        assert!(is_over(pin!(together.level(0))));
    }
}
