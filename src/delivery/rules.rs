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
