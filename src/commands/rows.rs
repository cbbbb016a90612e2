//! The table of commands: every one that Redis up to 8.10 and Valkey up to 9.1 put into a replication stream.
//!
//! Source: COMMAND and COMMAND GETKEYS of redis 8.10.2 and valkey 9.1.2; the replay class from `delivery.md`,
//! once-only where in doubt.

use super::Role;
use super::caps::Since;
use super::rewrite::{
    bitop, copy, discard, effects, flush, function_load, function_restore, georadius, geosearchstore, hash, list,
    publish, renamenx, restore, script_flush, stream, string, unlink, zadd, zpop, zstore,
};
use super::table::{Group, KeyRule, Replay, Shape, Spec};
use crate::filter::TypeName;

const YES: Replay = Replay::Replayable;
const NO: Replay = Replay::OnceOnly;
const OPT: Replay = Replay::ByOptions;

const STRING: Group = Group::Of(TypeName::String);
const LIST: Group = Group::Of(TypeName::List);
const SET: Group = Group::Of(TypeName::Set);
const ZSET: Group = Group::Of(TypeName::Zset);
const HASH: Group = Group::Of(TypeName::Hash);
const STREAM: Group = Group::Of(TypeName::Stream);
const ARRAY: Group = Group::Of(TypeName::Array);
const VECTOR: Group = Group::Of(TypeName::VectorSet);
const ANY: Group = Group::Any;
const NONE: Group = Group::None;

const ONE: KeyRule = KeyRule::One { at: 1, role: Role::Write };
const SECOND: KeyRule = KeyRule::One { at: 2, role: Role::Write };
const MANY: KeyRule = KeyRule::Range { first: 1, last: -1, step: 1, role: Role::Write };
const MANY_READ: KeyRule = KeyRule::Range { first: 1, last: -1, step: 1, role: Role::Read };
const PAIRS: KeyRule = KeyRule::Range { first: 1, last: -1, step: 2, role: Role::Write };
const BUT_LAST: KeyRule = KeyRule::Range { first: 1, last: -2, step: 1, role: Role::Write };
const COUNTED_1: KeyRule = KeyRule::Counted { count: 1, step: 1, role: Role::Write };
const COUNTED_2: KeyRule = KeyRule::Counted { count: 2, step: 1, role: Role::Write };
const STORE_ONE: KeyRule = KeyRule::Two(Role::Write, Role::Read);

#[rustfmt::skip]
pub(super) static ROWS: &[Spec] = &[
    // Strings
    Spec::new("SET", ONE, OPT, STRING, Shape::Replaces).rewrite(string::set),
    Spec::new("SETNX", ONE, NO, STRING, Shape::Replaces).rewrite(string::setnx),
    Spec::new("SETEX", ONE, NO, STRING, Shape::Replaces).rewrite(string::setex),
    Spec::new("PSETEX", ONE, NO, STRING, Shape::Replaces).rewrite(string::setex),
    Spec::new("GETSET", ONE, YES, STRING, Shape::Own),
    Spec::new("GETDEL", ONE, NO, STRING, Shape::Own).removes().rewrite(string::getdel).since(Since::redis(6, 2)),
    Spec::new("GETEX", ONE, NO, STRING, Shape::Own).rewrite(string::getex).since(Since::redis(6, 2)),
    Spec::new("DELEX", ONE, OPT, ANY, Shape::Own).removes().rewrite(string::delex).since(Since::redis_only(8, 4, 0)),
    Spec::new("DELIFEQ", ONE, NO, STRING, Shape::Own).removes().rewrite(string::getdel).since(Since::valkey_only(9, 0)),
    Spec::new("MSET", PAIRS, YES, STRING, Shape::Replaces),
    Spec::new("MSETNX", PAIRS, NO, STRING, Shape::Replaces).rewrite(string::msetnx),
    Spec::new("MSETEX", KeyRule::Counted { count: 1, step: 2, role: Role::Write }, OPT, STRING, Shape::Replaces).rewrite(string::msetex).since(Since::both((8, 4), (9, 1))),
    Spec::new("APPEND", ONE, NO, STRING, Shape::Own),
    Spec::new("INCR", ONE, NO, STRING, Shape::Own),
    Spec::new("DECR", ONE, NO, STRING, Shape::Own),
    Spec::new("INCRBY", ONE, NO, STRING, Shape::Own),
    Spec::new("DECRBY", ONE, NO, STRING, Shape::Own),
    Spec::new("INCRBYFLOAT", ONE, NO, STRING, Shape::Own),
    Spec::new("INCREX", ONE, NO, STRING, Shape::Effects).rewrite(effects).since(Since::redis_only(8, 8, 0)),
    Spec::new("SETRANGE", ONE, YES, STRING, Shape::Own),
    Spec::new("SETBIT", ONE, YES, STRING, Shape::Own),
    Spec::new("BITFIELD", ONE, OPT, STRING, Shape::Own).since(Since::redis(3, 2)),
    Spec::new("BITOP", KeyRule::Store { dst: 2, own: false }, NO, STRING, Shape::Store).rewrite(bitop),
    Spec::new("PFADD", ONE, NO, STRING, Shape::Own).since(Since::redis(2, 8)),
    Spec::new("PFCOUNT", MANY_READ, NO, STRING, Shape::Own).rewrite(discard),
    Spec::new("PFDEBUG", KeyRule::One { at: 2, role: Role::Write }, NO, STRING, Shape::Own).rewrite(discard),
    Spec::new("PFMERGE", KeyRule::Store { dst: 1, own: true }, NO, STRING, Shape::Merge),
    // Any type
    Spec::new("DEL", MANY, YES, ANY, Shape::Own).removes(),
    Spec::new("UNLINK", MANY, YES, ANY, Shape::Own).removes().rewrite(unlink).since(Since::redis(4, 0)),
    Spec::new("EXPIRE", ONE, OPT, ANY, Shape::Own).rewrite(string::expire),
    Spec::new("PEXPIRE", ONE, OPT, ANY, Shape::Own).rewrite(string::expire),
    Spec::new("EXPIREAT", ONE, OPT, ANY, Shape::Own).rewrite(string::expire),
    Spec::new("PEXPIREAT", ONE, OPT, ANY, Shape::Own).rewrite(string::expire),
    Spec::new("PERSIST", ONE, YES, ANY, Shape::Own),
    Spec::new("RESTORE", ONE, OPT, ANY, Shape::Replaces).rewrite(restore),
    Spec::new("RESTORE-ASKING", ONE, NO, ANY, Shape::Replaces).rewrite(restore),
    Spec::new("RENAME", KeyRule::Two(Role::ReadWrite, Role::Write), NO, ANY, Shape::Rename),
    Spec::new("RENAMENX", KeyRule::Two(Role::ReadWrite, Role::Write), NO, ANY, Shape::Rename).rewrite(renamenx),
    Spec::new("COPY", KeyRule::Copy, NO, ANY, Shape::Copy).rewrite(copy).since(Since::redis(6, 2)),
    Spec::new("MOVE", KeyRule::Move, NO, ANY, Shape::Move),
    Spec::new("SORT", KeyRule::Sort, NO, LIST, Shape::Store),
    Spec::new("MIGRATE", KeyRule::Migrate, NO, ANY, Shape::Effects).rewrite(effects),
    Spec::new("SWAPDB", KeyRule::None, NO, NONE, Shape::SwapDb).since(Since::redis(4, 0)),
    Spec::new("FLUSHDB", KeyRule::None, NO, NONE, Shape::FlushDb).removes().rewrite(flush),
    Spec::new("FLUSHALL", KeyRule::None, NO, NONE, Shape::FlushAll).removes().rewrite(flush),
    // Lists
    Spec::new("LPUSH", ONE, NO, LIST, Shape::Own),
    Spec::new("RPUSH", ONE, NO, LIST, Shape::Own),
    Spec::new("LPUSHX", ONE, NO, LIST, Shape::Own).rewrite(list::pushx),
    Spec::new("RPUSHX", ONE, NO, LIST, Shape::Own).rewrite(list::pushx),
    Spec::new("LINSERT", ONE, NO, LIST, Shape::Own),
    Spec::new("LPOP", ONE, NO, LIST, Shape::Own).removes().rewrite(list::pop),
    Spec::new("RPOP", ONE, NO, LIST, Shape::Own).removes().rewrite(list::pop),
    Spec::new("LREM", ONE, NO, LIST, Shape::Own).removes(),
    Spec::new("LTRIM", ONE, NO, LIST, Shape::Own).removes(),
    Spec::new("LSET", ONE, YES, LIST, Shape::Own),
    Spec::new("LMOVE", KeyRule::Two(Role::ReadWrite, Role::Write), NO, LIST, Shape::ListMove).rewrite(list::lmove).since(Since::redis(6, 2)),
    Spec::new("BLMOVE", KeyRule::Two(Role::ReadWrite, Role::Write), NO, LIST, Shape::ListMove).rewrite(list::lmove).since(Since::redis(6, 2)),
    Spec::new("RPOPLPUSH", KeyRule::Two(Role::ReadWrite, Role::Write), NO, LIST, Shape::ListMove),
    Spec::new("BRPOPLPUSH", KeyRule::Two(Role::ReadWrite, Role::Write), NO, LIST, Shape::ListMove).rewrite(list::brpoplpush),
    Spec::new("LMOVEM", KeyRule::Two(Role::ReadWrite, Role::Write), NO, LIST, Shape::ListMove).rewrite(list::lmovem).since(Since::redis_only(8, 10, 0)),
    Spec::new("BLMOVEM", KeyRule::Two(Role::ReadWrite, Role::Write), NO, LIST, Shape::Effects).rewrite(effects).since(Since::redis_only(8, 10, 0)),
    Spec::new("BLPOP", BUT_LAST, NO, LIST, Shape::Effects).removes().rewrite(effects),
    Spec::new("BRPOP", BUT_LAST, NO, LIST, Shape::Effects).removes().rewrite(effects),
    Spec::new("LMPOP", COUNTED_1, NO, LIST, Shape::Effects).removes().rewrite(effects).since(Since::redis(7, 0)),
    Spec::new("BLMPOP", COUNTED_2, NO, LIST, Shape::Effects).removes().rewrite(effects).since(Since::redis(7, 0)),
    // Sets
    Spec::new("SADD", ONE, YES, SET, Shape::Own),
    Spec::new("SREM", ONE, NO, SET, Shape::Own).removes(),
    Spec::new("SPOP", ONE, NO, SET, Shape::Effects).removes().rewrite(effects),
    Spec::new("SMOVE", KeyRule::Two(Role::ReadWrite, Role::Write), NO, SET, Shape::Smove),
    Spec::new("SINTERSTORE", KeyRule::Store { dst: 1, own: false }, NO, SET, Shape::Store),
    Spec::new("SUNIONSTORE", KeyRule::Store { dst: 1, own: false }, NO, SET, Shape::Store),
    Spec::new("SDIFFSTORE", KeyRule::Store { dst: 1, own: false }, NO, SET, Shape::Store),
    // Sorted sets
    Spec::new("ZADD", ONE, OPT, ZSET, Shape::Own).rewrite(zadd),
    Spec::new("GEOADD", ONE, OPT, ZSET, Shape::Own).rewrite(zadd).since(Since::redis(3, 2)),
    Spec::new("ZINCRBY", ONE, NO, ZSET, Shape::Own),
    Spec::new("ZREM", ONE, NO, ZSET, Shape::Own).removes(),
    Spec::new("ZREMRANGEBYRANK", ONE, NO, ZSET, Shape::Own).removes(),
    Spec::new("ZREMRANGEBYSCORE", ONE, NO, ZSET, Shape::Own).removes(),
    Spec::new("ZREMRANGEBYLEX", ONE, NO, ZSET, Shape::Own).removes(),
    Spec::new("ZPOPMIN", ONE, NO, ZSET, Shape::Own).removes().rewrite(zpop).since(Since::redis(5, 0)),
    Spec::new("ZPOPMAX", ONE, NO, ZSET, Shape::Own).removes().rewrite(zpop).since(Since::redis(5, 0)),
    Spec::new("BZPOPMIN", BUT_LAST, NO, ZSET, Shape::Effects).removes().rewrite(effects).since(Since::redis(5, 0)),
    Spec::new("BZPOPMAX", BUT_LAST, NO, ZSET, Shape::Effects).removes().rewrite(effects).since(Since::redis(5, 0)),
    Spec::new("ZMPOP", COUNTED_1, NO, ZSET, Shape::Effects).removes().rewrite(effects).since(Since::redis(7, 0)),
    Spec::new("BZMPOP", COUNTED_2, NO, ZSET, Shape::Effects).removes().rewrite(effects).since(Since::redis(7, 0)),
    Spec::new("ZUNIONSTORE", KeyRule::StoreCounted, NO, ZSET, Shape::Store).rewrite(zstore),
    Spec::new("ZINTERSTORE", KeyRule::StoreCounted, NO, ZSET, Shape::Store).rewrite(zstore),
    Spec::new("ZDIFFSTORE", KeyRule::StoreCounted, NO, ZSET, Shape::Store).since(Since::redis(6, 2)),
    Spec::new("ZRANGESTORE", STORE_ONE, NO, ZSET, Shape::Store).since(Since::redis(6, 2)),
    Spec::new("GEOSEARCHSTORE", STORE_ONE, NO, ZSET, Shape::Store).rewrite(geosearchstore).since(Since::redis(6, 2)),
    Spec::new("GEORADIUS", KeyRule::GeoStore { options: 6 }, NO, ZSET, Shape::Store).rewrite(georadius).since(Since::redis(3, 2)),
    Spec::new("GEORADIUSBYMEMBER", KeyRule::GeoStore { options: 5 }, NO, ZSET, Shape::Store).rewrite(georadius).since(Since::redis(3, 2)),
    // Hashes
    Spec::new("HSET", ONE, YES, HASH, Shape::Own).rewrite(hash::hset),
    Spec::new("HMSET", ONE, YES, HASH, Shape::Own),
    Spec::new("HSETNX", ONE, NO, HASH, Shape::Own).rewrite(hash::hsetnx),
    Spec::new("HDEL", ONE, NO, HASH, Shape::Own).removes(),
    Spec::new("HGETDEL", ONE, NO, HASH, Shape::Own).removes().rewrite(hash::hgetdel).since(Since::both((8, 0), (9, 1))),
    Spec::new("HINCRBY", ONE, NO, HASH, Shape::Own),
    Spec::new("HINCRBYFLOAT", ONE, NO, HASH, Shape::Own),
    Spec::new("HSETEX", ONE, OPT, HASH, Shape::Own).rewrite(hash::hsetex).since(Since::both((8, 0), (9, 0))),
    Spec::new("HGETEX", ONE, NO, HASH, Shape::Own).rewrite(hash::hgetex).since(Since::both((8, 0), (9, 0))),
    Spec::new("HEXPIRE", ONE, OPT, HASH, Shape::Own).rewrite(hash::hexpire).since(Since::both((7, 4), (9, 0))),
    Spec::new("HPEXPIRE", ONE, OPT, HASH, Shape::Own).rewrite(hash::hexpire).since(Since::both((7, 4), (9, 0))),
    Spec::new("HEXPIREAT", ONE, OPT, HASH, Shape::Own).rewrite(hash::hexpire).since(Since::both((7, 4), (9, 0))),
    Spec::new("HPEXPIREAT", ONE, OPT, HASH, Shape::Own).rewrite(hash::hexpire).since(Since::both((7, 4), (9, 0))),
    Spec::new("HPERSIST", ONE, YES, HASH, Shape::Own).since(Since::both((7, 4), (9, 0))),
    // Streams
    Spec::new("XADD", ONE, NO, STREAM, Shape::Own).rewrite(stream::xadd).since(Since::redis(5, 0)),
    Spec::new("XTRIM", ONE, NO, STREAM, Shape::Own).removes().rewrite(stream::xtrim).since(Since::redis(5, 0)),
    Spec::new("XDEL", ONE, NO, STREAM, Shape::Own).removes().since(Since::redis(5, 0)),
    Spec::new("XDELEX", ONE, NO, STREAM, Shape::Own).removes().rewrite(stream::xdelex).since(Since::redis_only(8, 2, 0)),
    Spec::new("XACK", ONE, YES, STREAM, Shape::Own).removes().since(Since::redis(5, 0)),
    Spec::new("XACKDEL", ONE, NO, STREAM, Shape::Own).removes().rewrite(stream::xackdel).since(Since::redis_only(8, 2, 0)),
    Spec::new("XNACK", ONE, NO, STREAM, Shape::Own).since(Since::redis_only(8, 8, 0)),
    Spec::new("XCLAIM", ONE, NO, STREAM, Shape::Own).since(Since::redis(5, 0)),
    Spec::new("XAUTOCLAIM", ONE, NO, STREAM, Shape::Effects).rewrite(effects).since(Since::redis(6, 2)),
    Spec::new("XREADGROUP", KeyRule::Streams, NO, STREAM, Shape::Effects).rewrite(effects).since(Since::redis(5, 0)),
    Spec::new("XSETID", ONE, NO, STREAM, Shape::Own).rewrite(stream::xsetid).since(Since::redis(5, 0)),
    Spec::new("XCFGSET", ONE, NO, STREAM, Shape::Own).rewrite(stream::bookkeeping).since(Since::redis_only(8, 6, 0)),
    Spec::new("XIDMPRECORD", ONE, NO, STREAM, Shape::Own).rewrite(stream::bookkeeping).since(Since::redis_only(8, 6, 2)),
    // Arrays and vector sets
    Spec::new("ARSET", ONE, NO, ARRAY, Shape::Own).since(Since::redis_only(8, 8, 0)),
    Spec::new("ARMSET", ONE, NO, ARRAY, Shape::Own).since(Since::redis_only(8, 8, 0)),
    Spec::new("ARINSERT", ONE, NO, ARRAY, Shape::Own).since(Since::redis_only(8, 8, 0)),
    Spec::new("ARRING", ONE, NO, ARRAY, Shape::Own).since(Since::redis_only(8, 8, 0)),
    Spec::new("ARSEEK", ONE, NO, ARRAY, Shape::Own).since(Since::redis_only(8, 8, 0)),
    Spec::new("ARDEL", ONE, NO, ARRAY, Shape::Own).removes().since(Since::redis_only(8, 8, 0)),
    Spec::new("ARDELRANGE", ONE, NO, ARRAY, Shape::Own).removes().since(Since::redis_only(8, 8, 0)),
    Spec::new("VADD", ONE, NO, VECTOR, Shape::Own).since(Since::redis_only(8, 0, 0)),
    Spec::new("VREM", ONE, NO, VECTOR, Shape::Own).removes().since(Since::redis_only(8, 0, 0)),
    Spec::new("VSETATTR", ONE, NO, VECTOR, Shape::Own).since(Since::redis_only(8, 0, 0)),
    // Scripts and messages
    Spec::new("EVAL", COUNTED_2, NO, ANY, Shape::Script),
    Spec::new("EVALSHA", COUNTED_2, NO, ANY, Shape::Script),
    Spec::new("FCALL", COUNTED_2, NO, ANY, Shape::Script).since(Since::redis(7, 0)),
    Spec::new("PUBLISH", KeyRule::None, NO, NONE, Shape::Global).rewrite(publish),
    Spec::new("SPUBLISH", KeyRule::None, NO, NONE, Shape::Global).rewrite(publish).since(Since::redis(7, 0)),
    // Between servers
    Spec::new("PING", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
    Spec::new("REPLCONF", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
    Spec::new("OPINFO", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
    Spec::new("SELECT", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
    Spec::new("MULTI", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
    Spec::new("EXEC", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
    Spec::new("TRIMSLOTS", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard),
];

/// Commands whose second word tells what they do. What is not listed here is not streamed.
#[rustfmt::skip]
pub(super) static SUBCOMMAND_ROWS: &[(&str, &[(&str, Spec)])] = &[
    ("XGROUP", &[
        ("CREATE", Spec::new("XGROUP CREATE", SECOND, NO, STREAM, Shape::Own).rewrite(stream::xgroup).since(Since::redis(5, 0))),
        ("CREATECONSUMER", Spec::new("XGROUP CREATECONSUMER", SECOND, NO, STREAM, Shape::Own).rewrite(stream::createconsumer).since(Since::redis(6, 2))),
        ("DELCONSUMER", Spec::new("XGROUP DELCONSUMER", SECOND, NO, STREAM, Shape::Own).removes().since(Since::redis(5, 0))),
        ("DESTROY", Spec::new("XGROUP DESTROY", SECOND, NO, STREAM, Shape::Own).removes().since(Since::redis(5, 0))),
        ("SETID", Spec::new("XGROUP SETID", SECOND, OPT, STREAM, Shape::Own).rewrite(stream::xgroup).since(Since::redis(5, 0))),
    ]),
    ("FUNCTION", &[
        ("LOAD", Spec::new("FUNCTION LOAD", KeyRule::None, NO, NONE, Shape::Global).rewrite(function_load).since(Since::redis(7, 0))),
        ("RESTORE", Spec::new("FUNCTION RESTORE", KeyRule::None, NO, NONE, Shape::Global).rewrite(function_restore).since(Since::redis(7, 0))),
        ("DELETE", Spec::new("FUNCTION DELETE", KeyRule::None, NO, NONE, Shape::Global).removes().since(Since::redis(7, 0))),
        ("FLUSH", Spec::new("FUNCTION FLUSH", KeyRule::None, NO, NONE, Shape::Global).removes().since(Since::redis(7, 0))),
    ]),
    ("SCRIPT", &[
        ("LOAD", Spec::new("SCRIPT LOAD", KeyRule::None, NO, NONE, Shape::Global)),
        ("FLUSH", Spec::new("SCRIPT FLUSH", KeyRule::None, NO, NONE, Shape::Global).removes().rewrite(script_flush)),
    ]),
    ("CLUSTER", &[
        ("SYNCSLOTS", Spec::new("CLUSTER SYNCSLOTS", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard)),
        ("SETSLOT", Spec::new("CLUSTER SETSLOT", KeyRule::None, NO, NONE, Shape::Infrastructure).rewrite(discard)),
        ("FLUSHSLOT", Spec::new("CLUSTER FLUSHSLOT", KeyRule::None, NO, NONE, Shape::FlushSlot).removes()),
    ]),
    ("HIMPORT", &[
        ("SET", Spec::new("HIMPORT SET", SECOND, NO, HASH, Shape::Effects).rewrite(effects).since(Since::redis_only(8, 10, 0))),
    ]),
];
