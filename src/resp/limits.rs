//! What a peer may claim before it is taken for broken or hostile.

/// Most arguments in one command. Servers take at most 2^31 - 1, clients in practice far fewer.
pub const COMMAND_ARGS_MAX: usize = 1 << 24;

/// Most bytes in one command, so that a span fits in 32 bits. A server's own limit for one argument
/// (`proto-max-bulk-len`) is 512 MiB by default.
pub const COMMAND_BYTES_MAX: usize = (1 << 31) - 1;

/// Most bytes of a line: a type byte, a length or a status, and CR LF.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// Deepest nesting of a reply that is read into memory. Servers answer at most 7 deep (XINFO STREAM FULL).
pub const REPLY_DEPTH_MAX: usize = 16;

/// Most bytes of a reply that is read into memory.
pub const REPLY_BYTES_MAX: usize = 1 << 30;
