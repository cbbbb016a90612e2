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

/// The same of [`super::motion::Motion`].
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MotionRules {
    /// The starts of a set in motion are those of every shard, not only of its feeder and the one that gave the sign.
    pub starts_of_all: bool,
    /// The state goes to the target with what passes the first unit that wasn't applied.
    pub state_stored: bool,
    /// States are read again after a break.
    pub states_reread: bool,
    /// A journal is kept from the starts until a replica has the switch.
    pub journals_kept: bool,
    /// A later process begins at the lowest of records and starts.
    pub resumes_at_starts: bool,
    /// Streams must be received up to an offset asked at rest.
    pub received: bool,
    /// Not only that of the owner.
    pub received_of_all: bool,
    /// Then the set must still be at rest.
    pub looked_twice: bool,
    /// Other shards' units make a key dirty while its set is copied.
    pub others_dirty: bool,
    /// A write of another shard meanwhile means that the set moves again.
    pub moves_again: bool,
    /// Units that a copied value has already are left out.
    pub guarded: bool,
    /// A unit that empties the set without naming keys makes all keys dirty.
    pub whole_when_emptied: bool,
    /// Nothing is copied before the old feeder's lanes have acknowledged what they were given.
    pub feeder_drained: bool,
    /// A unit of another shard waits while the switch is on its way.
    pub switch_awaited: bool,
    /// The switch waits for what all shards' lanes were given of the motion.
    pub switch_behind_all: bool,
    /// The switch waits until all shards have read what the same target says.
    pub switch_on_one_target: bool,
    /// The switch waits until the owner's stream has passed all copies.
    pub switch_behind_copies: bool,
}

#[cfg(test)]
impl Default for MotionRules {
    fn default() -> Self {
        MotionRules {
            starts_of_all: true,
            state_stored: true,
            states_reread: true,
            journals_kept: true,
            resumes_at_starts: true,
            received: true,
            received_of_all: true,
            looked_twice: true,
            others_dirty: true,
            moves_again: true,
            guarded: true,
            whole_when_emptied: true,
            feeder_drained: true,
            switch_awaited: true,
            switch_behind_all: true,
            switch_on_one_target: true,
            switch_behind_copies: true,
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
    /// The router starts again when nothing is in flight and every slot's record was read.
    pub rewinds_at_rest: bool,
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
            rewinds_at_rest: true,
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
