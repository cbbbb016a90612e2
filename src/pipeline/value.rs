//! A value from the snapshot or from the source's DUMP, as the commands that give the target the same.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::delivery::unit::LaneId;
use crate::net::info::Info;
use crate::rdb::opcode::{self, Project, Version};
use crate::rdb::{self, Key, Limits, RawValue, Restorer};
use crate::rdb::{Rewriter, Unsupported};
use crate::resp::encode;
use crate::route::Router;

/// Why a value can't be given to the target.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("its value is damaged: {0}")]
    Damaged(#[from] rdb::Error),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// What a target takes, and how a value is best written to it.
#[derive(Debug, Clone, Copy)]
pub struct ValueWriter {
    project: Project,
    version: Version,
    restorer: Restorer,
    /// Milliseconds by which expiries are written late.
    late_ms: i64,
    /// `--lossy`: what the target can't hold of a value is left out.
    lossy: bool,
    /// The target has no RESTORE.
    rebuilds: bool,
}

/// Values that take several commands, gathered: each lot goes in one transaction, and the lanes stand still for it.
#[derive(Debug, Default)]
pub struct Gathered {
    lots: BTreeMap<(LaneId, u32), (Vec<u8>, u32)>,
    bytes: usize,
    values: u64,
}

/// So much is gathered before it goes, of all lanes together.
const GATHERED_BYTES_MAX: usize = 256 * 1024;

/// So many commands go in one transaction: the target does nothing else for as long.
const GATHERED_COMMANDS_MAX: u32 = 1024;

impl Gathered {
    fn lot(&mut self, lane: LaneId, db: u32) -> &mut (Vec<u8>, u32) {
        self.lots.entry((lane, db)).or_default()
    }

    /// True when what was gathered should go.
    pub fn is_full(&self) -> bool {
        self.bytes >= GATHERED_BYTES_MAX
    }

    /// How many values were gathered since this was asked.
    pub fn take_values(&mut self) -> u64 {
        std::mem::take(&mut self.values)
    }

    fn added(&mut self, router: &mut Router, lane: LaneId, db: u32, bytes: usize) {
        self.bytes += bytes;
        self.values += 1;
        if self.lots.get(&(lane, db)).is_some_and(|(_, commands)| *commands >= GATHERED_COMMANDS_MAX)
            && let Some((bytes, commands)) = self.lots.remove(&(lane, db))
        {
            self.bytes -= bytes.len();
            router.piece(lane, db, commands, |out| out.extend_from_slice(&bytes));
        }
    }

    /// Gives all of it to the lanes.
    pub fn give(&mut self, router: &mut Router) {
        for ((lane, db), (bytes, commands)) in std::mem::take(&mut self.lots) {
            router.piece(lane, db, commands, |out| out.extend_from_slice(&bytes));
        }
        self.bytes = 0;
    }
}

/// When a key expires and how it was used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes {
    pub expires_at_ms: Option<i64>,
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
}

impl ValueWriter {
    /// Who writes looks first whether the target has the modules of the values.
    ///
    /// `info`: what the target says of itself; `footer_version`: that of its own DUMP payloads; `late_ms`: how much
    /// later than on the source keys and fields of hashes expire; `lossy`: what it can't hold of a value is left out.
    pub fn new(info: &Info, footer_version: u16, late_ms: i64, lossy: bool) -> Self {
        let project = if info.is_valkey() { Project::Valkey } else { Project::Redis };
        let version = info.version();
        let restorer = Restorer::new(project, version, footer_version).with_fields_late(late_ms).with_modules();
        ValueWriter { project, version, restorer, late_ms, lossy, rebuilds: false }
    }

    /// For a target without RESTORE: every value is made by commands.
    pub fn rebuilding(self, rebuilds: bool) -> Self {
        ValueWriter { rebuilds, ..self }
    }

    /// Whether what can't be held of a value is left out.
    pub fn is_lossy(&self) -> bool {
        self.lossy
    }

    pub fn restorer(&self) -> &Restorer {
        &self.restorer
    }

    fn caps(&self) -> rdb::TargetCaps {
        rdb::TargetCaps { fields_late_ms: self.late_ms, ..rdb::TargetCaps::new(self.project, self.version) }
    }

    /// Adds a copied key to what `lane` gets, by the cheapest command that carries it whole; returns what of it was left
    /// out, where that is accepted.
    ///
    /// A plain string goes as SET, which costs the target two thirds of a RESTORE; a packed one stays packed. What takes
    /// several commands is gathered.
    /// # Errors
    /// When the value is damaged, or the target can't hold it.
    pub fn copy(
        &self,
        router: &mut Router,
        gathered: &mut Gathered,
        (lane, db): (LaneId, u32),
        key: &Key<'_>,
    ) -> Result<Option<Unsupported>, Error> {
        let attributes = Attributes { expires_at_ms: self.late(key.expires_at_ms), idle_s: key.idle_s, freq: key.freq };
        if let Some(text) = self.plain_string(&key.value, &attributes, key.meta) {
            router.copy(lane, db, |out| set(out, key.name, &text, attributes.expires_at_ms));
            return Ok(None);
        }
        if let Some(payload) = self.payload(&key.value, key.meta)?
            && self.is_restored_by_one(&attributes)
        {
            let lost = self.meta_lost(key.meta)?;
            router.copy(lane, db, |out| self.restore(out, key.name, &payload, &attributes));
            return Ok(lost);
        }
        let (bytes, commands) = gathered.lot(lane, db);
        let (bytes_before, commands_before) = (bytes.len(), *commands);
        let replaced = self.replace(key.name, &key.value, key.meta, &attributes, |raw| {
            bytes.extend_from_slice(raw);
            *commands += 1;
        });
        match replaced {
            Ok(lost) => {
                let added = bytes.len() - bytes_before;
                gathered.added(router, lane, db, added);
                Ok(lost)
            }
            Err(error) => {
                bytes.truncate(bytes_before);
                *commands = commands_before;
                Err(error)
            }
        }
    }

    /// Appends commands that replace `key` with `value`, for a unit of the stream; tells `command` of each. Returns what
    /// was left out, where that is accepted.
    ///
    /// # Errors
    /// When the value is damaged, or the target can't hold it. No command was told of then.
    pub fn replace(
        &self,
        name: &[u8],
        value: &RawValue<'_>,
        meta: Option<&[u8]>,
        attributes: &Attributes,
        mut command: impl FnMut(&[u8]),
    ) -> Result<Option<Unsupported>, Error> {
        let mut out = Vec::new();
        if let Some(payload) = self.payload(value, meta)? {
            let lost = self.meta_lost(meta)?;
            self.restore_by_parts(name, &payload, attributes, &mut command);
            return Ok(lost);
        }
        self.rebuild(name, (value, meta), attributes.expires_at_ms, &mut |args| {
            out.clear();
            encode::command(&mut out, args);
            command(&out);
        })
    }

    fn payload<'a>(
        &self,
        value: &RawValue<'a>,
        meta: Option<&'a [u8]>,
    ) -> Result<Option<rdb::Payload<'a>>, rdb::Error> {
        if self.rebuilds { Ok(None) } else { self.restorer.payload(value, meta) }
    }

    /// Modules' metadata that the target doesn't keep, where that is accepted.
    ///
    /// # Errors
    /// Where it isn't.
    pub fn meta_lost(&self, meta: Option<&[u8]>) -> Result<Option<Unsupported>, Unsupported> {
        match meta {
            Some(_) if !self.restorer.keeps_meta() || self.rebuilds => {
                if self.lossy {
                    Ok(Some(Unsupported::Metadata))
                } else {
                    Err(Unsupported::Metadata)
                }
            }
            _ => Ok(None),
        }
    }

    /// Starts a value that comes in pieces.
    pub fn rewriter(&self, name: &[u8], expires_at_ms: Option<i64>) -> Rewriter {
        let caps = rdb::TargetCaps { accept_loss: self.lossy, ..self.caps() };
        Rewriter::new(name, self.late(expires_at_ms), caps)
    }

    /// When a key is to expire on the target that expires at `at_ms` on the source.
    pub fn late(&self, at_ms: Option<i64>) -> Option<i64> {
        // 0 and less would mean no expiry, or be refused; a key that expired in 1970 has expired all the same.
        at_ms.map(|at| at.saturating_add(self.late_ms).max(1))
    }

    /// The text of a string that is best written with SET.
    fn plain_string<'a>(
        &self,
        value: &RawValue<'a>,
        attributes: &Attributes,
        meta: Option<&[u8]>,
    ) -> Option<Cow<'a, [u8]>> {
        let bare = attributes.idle_s.is_none() && attributes.freq.is_none() && meta.is_none();
        let can_expire = attributes.expires_at_ms.is_none() || self.knows_pxat();
        if value.value_type != opcode::STRING || !bare || !can_expire {
            return None;
        }
        rdb::plain_string(value.bytes)
    }

    /// SET … PXAT came with 6.2.
    fn knows_pxat(&self) -> bool {
        self.project == Project::Valkey || self.version >= (6, 2, 0)
    }

    fn rebuild(
        &self,
        name: &[u8],
        (value, meta): (&RawValue<'_>, Option<&[u8]>),
        expires_at_ms: Option<i64>,
        out: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Option<Unsupported>, Error> {
        let value = rdb::decode(value, &Limits::default())?;
        let mut lost = self.meta_lost(meta)?;
        let mut caps = self.caps();
        if let Err(problem) = rdb::check(&value, &caps) {
            if !self.lossy || !problem.is_partial() {
                return Err(problem.into());
            }
            lost = Some(problem);
            caps.accept_loss = true;
        }
        rdb::commands(name, &value, expires_at_ms, &caps, out)?;
        Ok(lost)
    }

    /// RESTORE … REPLACE, which came with 3.0.
    fn knows_replace(&self) -> bool {
        self.project == Project::Valkey || self.version >= (3, 0, 0)
    }

    /// RESTORE … ABSTTL, IDLETIME and FREQ, which came with 5.0.
    fn knows_absttl(&self) -> bool {
        self.project == Project::Valkey || self.version >= (5, 0, 0)
    }

    fn is_restored_by_one(&self, attributes: &Attributes) -> bool {
        self.knows_absttl() || self.knows_replace() && attributes.expires_at_ms.is_none()
    }

    /// Writes RESTORE name ttl payload REPLACE [ABSTTL [IDLETIME s | FREQ n]].
    fn restore(&self, out: &mut Vec<u8>, name: &[u8], payload: &rdb::Payload<'_>, attributes: &Attributes) {
        let hint = match (attributes.idle_s, attributes.freq) {
            _ if !self.knows_absttl() => None,
            (Some(idle_s), _) => Some((&b"IDLETIME"[..], i64::try_from(idle_s).unwrap_or(i64::MAX))),
            (None, Some(freq)) => Some((&b"FREQ"[..], i64::from(freq))),
            (None, None) => None,
        };
        let words = if self.knows_absttl() { 6 } else { 5 };
        encode::array_header(out, words + hint.map_or(0, |_| 2));
        encode::bulk(out, b"RESTORE");
        encode::bulk(out, name);
        encode::bulk_number(out, attributes.expires_at_ms.unwrap_or(0));
        bulk_payload(out, payload);
        encode::bulk(out, b"REPLACE");
        if self.knows_absttl() {
            encode::bulk(out, b"ABSTTL");
        }
        if let Some((option, number)) = hint {
            encode::bulk(out, option);
            encode::bulk_number(out, number);
        }
    }

    /// The same by as many commands as it takes: an absolute time, and the place of an older key, were not always RESTORE's.
    fn restore_by_parts(
        &self,
        name: &[u8],
        payload: &rdb::Payload<'_>,
        attributes: &Attributes,
        command: &mut impl FnMut(&[u8]),
    ) {
        let mut out = Vec::new();
        if self.is_restored_by_one(attributes) {
            self.restore(&mut out, name, payload, attributes);
            return command(&out);
        }
        if self.knows_replace() {
            self.restore(&mut out, name, payload, &Attributes::default());
        } else {
            encode::command(&mut out, &[b"DEL", name]);
            command(&out);
            out.clear();
            encode::array_header(&mut out, 4);
            encode::bulk(&mut out, b"RESTORE");
            encode::bulk(&mut out, name);
            encode::bulk_number(&mut out, 0);
            bulk_payload(&mut out, payload);
        }
        command(&out);
        if let Some(at_ms) = attributes.expires_at_ms {
            out.clear();
            encode::command(&mut out, &[&b"PEXPIREAT"[..], name, at_ms.to_string().as_bytes()]);
            command(&out);
        }
    }
}

fn bulk_payload(out: &mut Vec<u8>, payload: &rdb::Payload<'_>) {
    encode::bulk_header(out, payload.len());
    payload.append_to(out);
    out.extend_from_slice(b"\r\n");
}

fn set(out: &mut Vec<u8>, name: &[u8], text: &[u8], expires_at_ms: Option<i64>) {
    encode::array_header(out, if expires_at_ms.is_some() { 5 } else { 3 });
    encode::bulk(out, b"SET");
    encode::bulk(out, name);
    encode::bulk(out, text);
    if let Some(ms) = expires_at_ms {
        encode::bulk(out, b"PXAT");
        encode::bulk_number(out, ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::unit::Item;
    use crate::offset::ReplOffset;

    fn writer(version: &str, lossy: bool) -> ValueWriter {
        let info = Info::parse(format!("redis_version:{version}\r\n").as_bytes());
        ValueWriter::new(&info, 6, 0, lossy)
    }

    fn key<'a>(value_type: u8, bytes: &'a [u8], expires_at_ms: Option<i64>) -> Key<'a> {
        let value = RawValue { value_type, bytes, project: Project::Redis, template: None };
        Key { name: b"k", expires_at_ms, idle_s: Some(5), freq: None, meta: None, value }
    }

    /// A list of one element, as 2.8 writes it.
    const LIST: &[u8] = b"\x01\x01a";

    /// The names and lengths of what is sent for a copied key: values alone, and what goes in a transaction.
    fn copied(writer: ValueWriter, key: &Key<'_>) -> (Vec<String>, Vec<String>) {
        let (mut router, mut gathered) = (Router::new(1), Gathered::default());
        writer.copy(&mut router, &mut gathered, (0, 0), key).unwrap();
        gathered.give(&mut router);
        let (mut values, mut pieces) = (Vec::new(), Vec::new());
        for item in router.take(ReplOffset(0), 0).lanes.into_iter().flatten() {
            match item {
                Item::Copy(chunk) => values.extend(commands(&chunk.bytes)),
                Item::Pieces(chunk) => pieces.extend(commands(&chunk.bytes)),
                other => panic!("{other:?}"),
            }
        }
        (values, pieces)
    }

    /// Each command's name and the last word of it.
    fn commands(mut bytes: &[u8]) -> Vec<String> {
        let (mut parser, mut all) = (crate::resp::command::Parser::new(), Vec::new());
        while let Some(crate::resp::command::Parsed::Command { len }) = parser.parse(bytes).unwrap() {
            let args = parser.args(bytes);
            let word = |at| String::from_utf8_lossy(args.get(at).unwrap_or_default()).into_owned();
            all.push(format!("{} {}", word(0), word(args.len() - 1)));
            bytes = &bytes[len..];
        }
        all
    }

    #[test]
    fn restore_is_said_as_the_target_knows_it() {
        let list = |at| key(opcode::LIST, LIST, at);
        let none = Vec::<String>::new();
        assert_eq!(copied(writer("6.0.0", false), &list(Some(9))), (vec!["RESTORE 5".into()], none.clone()));
        assert_eq!(copied(writer("3.2.0", false), &list(None)), (vec!["RESTORE REPLACE".into()], none.clone()));
        let parts = vec!["RESTORE REPLACE".to_owned(), "PEXPIREAT 9".to_owned()];
        assert_eq!(copied(writer("3.2.0", false), &list(Some(9))), (none.clone(), parts));
        let (values, pieces) = copied(writer("2.8.24", false), &list(Some(9)));
        assert_eq!(values, none);
        assert_eq!((pieces[0].as_str(), pieces[2].as_str(), pieces.len()), ("DEL k", "PEXPIREAT 9", 3));
        assert!(pieces[1].starts_with("RESTORE "));
        let rebuilt = vec!["UNLINK k".to_owned(), "RPUSH a".to_owned(), "PEXPIREAT 9".to_owned()];
        assert_eq!(copied(writer("6.0.0", false).rebuilding(true), &list(Some(9))), (none, rebuilt));
    }

    #[test]
    fn what_is_left_out_is_told_where_that_is_accepted() {
        let mut given = key(opcode::LIST, LIST, None);
        given.meta = Some(b"\xf3\x00");
        let copy = |lossy| {
            let (mut router, mut gathered) = (Router::new(1), Gathered::default());
            writer("8.0.0", lossy).copy(&mut router, &mut gathered, (0, 0), &given)
        };
        assert!(matches!(copy(true), Ok(Some(Unsupported::Metadata))));
        assert!(matches!(copy(false), Err(Error::Unsupported(Unsupported::Metadata))));
    }

    #[test]
    fn gathered_values_go_when_they_are_many() {
        let (mut router, mut gathered) = (Router::new(1), Gathered::default());
        let list = key(opcode::LIST, LIST, Some(9));
        for _ in 0..GATHERED_COMMANDS_MAX / 2 {
            assert_eq!(router.bytes(), 0);
            writer("3.2.0", false).copy(&mut router, &mut gathered, (0, 0), &list).unwrap();
        }
        assert!(router.bytes() > 0 && gathered.bytes == 0 && !gathered.is_full());
    }
}
