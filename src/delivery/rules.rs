//! Rules of the machine that tests can take out, to show that each is needed; of those around it `holds!` tells.

/// What the machine does for a reason; all true outside of tests.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// A flush carries its record in its own transaction.
    pub record_in_flush: bool,
    /// After a break, what the record covers isn't sent again.
    pub record_read_back: bool,
    /// Nothing is sent behind a flush that isn't answered.
    pub one_in_flight: bool,
    /// A flush is one transaction.
    pub one_transaction: bool,
    /// A record names only what was acknowledged.
    pub record_acknowledged: bool,
    /// A record may fall back when it is read again.
    pub record_falls_back: bool,
    /// READONLY and the like close the connection.
    pub elsewhere_closes: bool,
    /// Lanes drain before a joint flush of theirs is sent.
    pub joined_drain: bool,
    /// A joint flush moves the records of all its lanes.
    pub joint_moves_all: bool,
    /// A lane whose unit is on its way on another lane writes no record.
    pub joined_writes_no_record: bool,
    /// A joint flush begins with a unit that all its lanes stand at.
    pub joint_starts_drained: bool,
    /// The record of a joint flush counts the pieces of all its lanes.
    pub joint_counts_pieces: bool,
    /// Lanes flow as one only with those of their own group.
    pub groups_apart: bool,
    /// All of one offset goes in one flush.
    pub offset_whole: bool,
    /// The lanes of a joint unit are held while its task is done.
    pub task_holds: bool,
    /// A task is done again after a break.
    pub task_again: bool,
    /// Pieces of large values are counted in the record.
    pub pieces_counted: bool,
    /// A value of the copy waits for its SELECT to be answered.
    pub select_awaited: bool,
    /// MULTI goes alone where it may be refused.
    pub multi_awaited: bool,
    /// Most commands of a flush.
    pub flush_commands_max: u32,
}

#[cfg(test)]
impl Default for Rules {
    fn default() -> Self {
        Rules {
            record_in_flush: true,
            record_read_back: true,
            one_in_flight: true,
            one_transaction: true,
            record_acknowledged: true,
            record_falls_back: true,
            elsewhere_closes: true,
            joined_drain: true,
            joint_moves_all: true,
            joined_writes_no_record: true,
            joint_starts_drained: true,
            joint_counts_pieces: true,
            groups_apart: true,
            offset_whole: true,
            task_holds: true,
            task_again: true,
            pieces_counted: true,
            select_awaited: true,
            multi_awaited: true,
            flush_commands_max: super::standalone::FLUSH_COMMANDS_MAX,
        }
    }
}

/// The same of the machine for a cluster.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotRules {
    /// A transaction carries its slot's record.
    pub record_in_flush: bool,
    /// What a record covers isn't sent again, neither after a break nor when the router started again.
    pub record_read_back: bool,
    /// Nothing of a slot is sent behind its transaction that isn't answered.
    pub one_in_flight: bool,
    /// A record names only what was acknowledged.
    pub record_acknowledged: bool,
    /// A record may fall back when it is read again.
    pub record_falls_back: bool,
    /// READONLY and the like close the node's connections.
    pub elsewhere_closes: bool,
    /// A slot that moved goes on only when its record was read from its new owner.
    pub moved_settles: bool,
    /// A floor counts for the slots that it names, and no others.
    pub floor_names_slots: bool,
    /// A floor counts only on the node that owns the slot.
    pub floor_at_owner: bool,
    /// A floor says no more than what every slot has applied.
    pub floor_acknowledged: bool,
    /// Everything before a barrier is applied before its task is done.
    pub barrier_drains: bool,
    /// What was done behind a barrier is remembered, so that a loss of it is seen.
    pub barrier_remembered: bool,
    /// A task is done again after a break.
    pub task_again: bool,
    /// A slot that came to a node which then fell back is not believed.
    pub torn_is_lost: bool,
    /// Another server in the copy is a loss.
    pub copy_is_lost: bool,
    /// Pieces of large values are counted in the record.
    pub pieces_counted: bool,
    /// A value of the copy waits for its SELECT to be answered.
    pub select_awaited: bool,
    /// Most commands of a transaction.
    pub flush_commands_max: u32,
}

#[cfg(test)]
impl Default for SlotRules {
    fn default() -> Self {
        SlotRules {
            record_in_flush: true,
            record_read_back: true,
            one_in_flight: true,
            record_acknowledged: true,
            record_falls_back: true,
            elsewhere_closes: true,
            moved_settles: true,
            floor_names_slots: true,
            floor_at_owner: true,
            floor_acknowledged: true,
            barrier_drains: true,
            barrier_remembered: true,
            task_again: true,
            torn_is_lost: true,
            copy_is_lost: true,
            pieces_counted: true,
            select_awaited: true,
            flush_commands_max: super::standalone::FLUSH_COMMANDS_MAX,
        }
    }
}

/// Whether a rule holds: `rule!(self, name)`, a constant outside of tests.
macro_rules! rule {
    ($self:ident, $name:ident) => {{
        #[cfg(test)]
        let holds = $self.rules.$name;
        #[cfg(not(test))]
        let holds = true;
        holds
    }};
}

pub(crate) use rule;
