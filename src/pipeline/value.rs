//! A value from the snapshot or from the source's DUMP, as the commands that give the target the same.

use std::borrow::Cow;

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
}

/// When a key expires and how it was used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes {
    pub expires_at_ms: Option<i64>,
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
}

impl ValueWriter {
    /// `info`: what the target says of itself; `footer_version`: that of its own DUMP payloads; `late_ms`: how much
    /// later than on the source keys and fields of hashes expire.
    pub fn new(info: &Info, footer_version: u16, late_ms: i64) -> Self {
        let project = if info.is_valkey() { Project::Valkey } else { Project::Redis };
        let version = info.version();
        let restorer = Restorer::new(project, version, footer_version).with_fields_late(late_ms);
        ValueWriter { project, version, restorer, late_ms }
    }

    pub fn restorer(&self) -> &Restorer {
        &self.restorer
    }

    fn caps(&self) -> rdb::TargetCaps {
        rdb::TargetCaps { fields_late_ms: self.late_ms, ..rdb::TargetCaps::new(self.project, self.version) }
    }

    /// Adds a copied key to what `lane` gets, by the cheapest command that carries it whole.
    ///
    /// A plain string goes as SET, which costs the target two thirds of a RESTORE; a packed one stays packed.
    /// # Errors
    /// When the value is damaged, or the target has no such type.
    pub fn copy(&self, router: &mut Router, lane: LaneId, db: u32, key: &Key<'_>) -> Result<(), Error> {
        let attributes = Attributes { expires_at_ms: self.late(key.expires_at_ms), idle_s: key.idle_s, freq: key.freq };
        if let Some(text) = self.plain_string(&key.value, &attributes, key.meta) {
            router.copy(lane, db, |out| set(out, key.name, &text, attributes.expires_at_ms));
            return Ok(());
        }
        let Some(payload) = self.restorer.payload(&key.value, key.meta)? else {
            let (mut bytes, mut commands) = (Vec::new(), 0);
            self.rebuild(key.name, &key.value, attributes.expires_at_ms, &mut |args| {
                encode::command(&mut bytes, args);
                commands += 1;
            })?;
            router.piece(lane, db, commands, |out| out.extend_from_slice(&bytes));
            return Ok(());
        };
        router.copy(lane, db, |out| self.restore(out, key.name, &payload, &attributes));
        Ok(())
    }

    /// Appends commands that replace `key` with `value`, for a unit of the stream; tells `command` of each.
    ///
    /// # Errors
    /// When the value is damaged, or the target has no such type.
    pub fn replace(
        &self,
        name: &[u8],
        value: &RawValue<'_>,
        meta: Option<&[u8]>,
        attributes: &Attributes,
        mut command: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut out = Vec::new();
        if let Some(payload) = self.restorer.payload(value, meta)? {
            self.restore(&mut out, name, &payload, attributes);
            command(&out);
            return Ok(());
        }
        self.rebuild(name, value, attributes.expires_at_ms, &mut |args| {
            out.clear();
            encode::command(&mut out, args);
            command(&out);
        })
    }

    /// Starts a value that comes in pieces.
    pub fn rewriter(&self, name: &[u8], expires_at_ms: Option<i64>) -> Rewriter {
        Rewriter::new(name, self.late(expires_at_ms), self.caps())
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
        value: &RawValue<'_>,
        expires_at_ms: Option<i64>,
        out: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<(), Error> {
        let value = rdb::decode(value, &Limits::default())?;
        Ok(rdb::commands(name, &value, expires_at_ms, &self.caps(), out)?)
    }

    /// Writes RESTORE name ttl payload REPLACE ABSTTL [IDLETIME s | FREQ n].
    fn restore(&self, out: &mut Vec<u8>, name: &[u8], payload: &rdb::Payload<'_>, attributes: &Attributes) {
        let hint = match (attributes.idle_s, attributes.freq) {
            (Some(idle_s), _) => Some((&b"IDLETIME"[..], i64::try_from(idle_s).unwrap_or(i64::MAX))),
            (None, Some(freq)) => Some((&b"FREQ"[..], i64::from(freq))),
            (None, None) => None,
        };
        encode::array_header(out, 6 + hint.map_or(0, |_| 2));
        encode::bulk(out, b"RESTORE");
        encode::bulk(out, name);
        encode::bulk_number(out, attributes.expires_at_ms.unwrap_or(0));
        encode::bulk_header(out, payload.len());
        payload.append_to(out);
        out.extend_from_slice(b"\r\n$7\r\nREPLACE\r\n$6\r\nABSTTL\r\n");
        if let Some((option, number)) = hint {
            encode::bulk(out, option);
            encode::bulk_number(out, number);
        }
    }
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
