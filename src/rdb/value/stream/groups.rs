//! Consumer groups. A group's pending entries come first, then each consumer names those it owns by id; so the group's are
//! held until its last consumer.

use super::{Form, Pending, StreamId};
use crate::rdb::decoder::Limits;
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;
use crate::rdb::value::pieces::{Budget, Left};

pub(super) enum GroupPart {
    Group { name: Vec<u8>, last_id: StreamId, entries_read: Option<u64> },
    Consumer { name: Vec<u8>, seen_ms: i64, active_ms: Option<i64> },
    Pending(Vec<Pending>),
    Nacked(Vec<Pending>),
}

#[derive(Debug)]
pub(super) struct Groups {
    form: Form,
    bytes_max: u64,
    pending_max: u64,
    left: Left,
    phase: Phase,
    /// Entries, consumers, ids or zone ids still to come in the phase.
    part: Left,
    consumers: Left,
    /// The group's, ascending by id.
    pending: Vec<Owed>,
    owned: usize,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Head,
    Pending,
    Consumer,
    Ids,
    Zone,
}

#[derive(Debug)]
struct Owed {
    pending: Pending,
    owned: bool,
}

impl Groups {
    pub fn new(form: Form, limits: &Limits) -> Self {
        Groups {
            form,
            bytes_max: limits.element_bytes_max,
            pending_max: limits.pending_max,
            left: Left::default(),
            phase: Phase::Head,
            part: Left::default(),
            consumers: Left::default(),
            pending: Vec::new(),
            owned: 0,
        }
    }

    pub fn piece(&mut self, r: &mut Reader<'_>, budget: Budget) -> Step<Option<GroupPart>> {
        loop {
            match self.phase {
                Phase::Head => return self.head(r),
                Phase::Pending => {
                    self.read_pending(r)?;
                    self.phase = Phase::Consumer;
                    self.consumers = Left::default();
                }
                Phase::Consumer => {
                    if self.consumers.any(r)? {
                        return self.consumer(r).map(Some);
                    }
                    self.phase = Phase::Zone;
                    self.part = Left::default();
                }
                Phase::Ids => {
                    let ids = budget.gather(r, |_| 32, |r| self.owned_id(r))?;
                    if !ids.is_empty() {
                        return Ok(Some(GroupPart::Pending(ids)));
                    }
                    self.phase = Phase::Consumer;
                }
                Phase::Zone => {
                    if self.form.nacked {
                        let ids = budget.gather(r, |_| 32, |r| self.owned_id(r))?;
                        if !ids.is_empty() {
                            return Ok(Some(GroupPart::Nacked(ids)));
                        }
                    }
                    if self.owned != self.pending.len() {
                        return Err(Fault::Corrupt("a pending entry of a group belongs to no consumer").into());
                    }
                    self.phase = Phase::Head;
                }
            }
        }
    }

    fn head(&mut self, r: &mut Reader<'_>) -> Step<Option<GroupPart>> {
        if !self.left.any(r)? {
            return Ok(None);
        }
        let name = r.string(self.bytes_max)?.into_owned();
        let last_id = StreamId::read_lens(r)?;
        let entries_read = match self.form.counters {
            true => Some(r.len()?).filter(|&n| n != u64::MAX),
            false => None,
        };
        self.left.took(r);
        self.phase = Phase::Pending;
        self.part = Left::default();
        self.pending.clear();
        self.owned = 0;
        Ok(Some(GroupPart::Group { name, last_id, entries_read }))
    }

    fn read_pending(&mut self, r: &mut Reader<'_>) -> Step<()> {
        while self.part.any(r)? {
            let id = StreamId::read(r)?;
            let (delivered_ms, deliveries) = (r.i64()?, r.len()?);
            self.part.took(r);
            if self.pending.last().is_some_and(|last| last.pending.id >= id) {
                return Err(Fault::Corrupt("a group's pending entries don't ascend").into());
            }
            self.pending.push(Owed { pending: Pending { id, delivered_ms, deliveries }, owned: false });
            let (size, max) = (self.pending.len() as u64, self.pending_max);
            if size > max {
                return Err(Fault::TooLarge { what: "the number of a group's pending entries", size, max }.into());
            }
        }
        Ok(())
    }

    fn consumer(&mut self, r: &mut Reader<'_>) -> Step<GroupPart> {
        let name = r.string(self.bytes_max)?.into_owned();
        let seen_ms = r.i64()?;
        let active_ms = match self.form.active_times {
            true => Some(r.i64()?),
            false => None,
        };
        self.consumers.took(r);
        self.phase = Phase::Ids;
        self.part = Left::default();
        Ok(GroupPart::Consumer { name, seen_ms, active_ms })
    }

    /// An id of the group's pending entries that nobody had before.
    fn owned_id(&mut self, r: &mut Reader<'_>) -> Step<Option<Pending>> {
        if !self.part.any(r)? {
            return Ok(None);
        }
        let id = StreamId::read(r)?;
        self.part.took(r);
        let at = self.pending.binary_search_by_key(&id, |owed| owed.pending.id).ok();
        let Some(owed) = at.and_then(|at| self.pending.get_mut(at)) else {
            return Err(Fault::Corrupt("a consumer's pending entry is not its group's").into());
        };
        if std::mem::replace(&mut owed.owned, true) {
            return Err(Fault::Duplicate("pending entry").into());
        }
        self.owned += 1;
        Ok(Some(owed.pending))
    }
}
