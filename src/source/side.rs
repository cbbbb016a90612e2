//! A second connection to the source, for questions: who it is, where its stream stands, what a key holds.
//!
//! Nothing but ACKs may be sent on the replication link itself.

use crate::net::conn::{Conn, Error};
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::offset::{ReplId, ReplOffset};
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::Slot;

/// What PTTL and PEXPIRETIME say of a key that isn't there.
const GONE: i64 = -2;

/// A key as the source held it at one moment of its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The DUMP payload; `None` if there was no such key.
    pub payload: Option<Vec<u8>>,
    /// Unix milliseconds; `None` without an expiry.
    pub expires_at_ms: Option<i64>,
}

/// Where the source's stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub replid: Option<ReplId>,
    pub offset: ReplOffset,
}

/// So many keys of a slot are asked for at first.
const SLOT_KEYS: usize = 10_000;

/// Connects when first asked, and again after a break.
#[derive(Debug)]
pub struct Side {
    server: Locator,
    /// A replica of a cluster answers for keys only when it is told that old values will do.
    readonly: bool,
    conn: Option<Conn>,
    /// The database that the connection has selected. One that needs no other needs no permission to SELECT.
    db: u32,
    /// Whether the source knows PEXPIRETIME (7.0); asked by trying.
    pexpiretime: bool,
}

impl Side {
    pub fn new(server: Locator) -> Self {
        Side { server, readonly: false, conn: None, db: 0, pexpiretime: true }
    }

    /// For a node of a cluster, which may be a replica.
    pub fn of_cluster(server: Locator) -> Self {
        Side { readonly: true, ..Side::new(server) }
    }

    /// Closes the connection: the next question gets a new one, to wherever the server is then.
    pub fn close(&mut self) {
        self.conn = None;
    }

    pub fn server(&self) -> &Locator {
        &self.server
    }

    async fn conn(&mut self) -> Result<&mut Conn, Error> {
        if self.conn.is_none() {
            let mut conn = self.server.connect().await?;
            if self.readonly {
                // Where that is refused, a primary answers all the same.
                conn.call(&[b"READONLY"]).await?;
            }
            self.conn = Some(conn);
            self.db = 0;
        }
        // Just put there.
        match &mut self.conn {
            Some(conn) => Ok(conn),
            None => unreachable!("connected above"),
        }
    }

    /// Asks one thing; the connection is closed after a failure, so that the next question gets a new one.
    ///
    /// # Errors
    /// When the source can't be reached or answers an error.
    pub async fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply, Error> {
        let answer = self.conn().await?.ask(args).await;
        if !matches!(answer, Ok(_) | Err(Error::Refused { .. })) {
            self.conn = None;
        }
        answer
    }

    /// The same in a database.
    ///
    /// # Errors
    /// As for [`Side::ask`].
    pub async fn ask_in<A: AsRef<[u8]>>(&mut self, db: u32, args: &[A]) -> Result<Reply, Error> {
        self.conn().await?;
        if self.db != db {
            self.ask(&[&b"SELECT"[..], db.to_string().as_bytes()]).await?;
            self.db = db;
        }
        self.ask(args).await
    }

    /// # Errors
    /// When the source can't be reached or refuses.
    pub async fn info(&mut self) -> Result<Info, Error> {
        Ok(Info::parse(self.ask(&[b"INFO"]).await?.bytes().unwrap_or_default()))
    }

    /// Where the stream stands now.
    ///
    /// # Errors
    /// When the source can't be reached or refuses.
    pub async fn position(&mut self) -> Result<Position, Error> {
        let reply = self.ask(&[&b"INFO"[..], b"replication"]).await?;
        Ok(position(&Info::parse(reply.bytes().unwrap_or_default())))
    }

    /// Reads keys, each of a database, all at one moment, and where the stream stood at it.
    ///
    /// DUMP blocks the source while it runs: a large key costs it some time.
    /// # Errors
    /// When the source can't be reached or refuses.
    pub async fn read_keys(&mut self, keys: &[(u32, &[u8])]) -> Result<(Vec<Found>, Position), Error> {
        match self.try_read_keys(keys).await {
            Err(Error::Refused { words, .. }) if self.pexpiretime && words.contains("unknown command") => {
                self.pexpiretime = false;
                self.try_read_keys(keys).await
            }
            answer => answer,
        }
    }

    async fn try_read_keys(&mut self, keys: &[(u32, &[u8])]) -> Result<(Vec<Found>, Position), Error> {
        // A new connection would have another database selected.
        self.conn().await?;
        let mut out = Vec::new();
        encode::command(&mut out, &[b"MULTI"]);
        let selects = keys.iter().any(|(db, _)| *db != self.db);
        for (db, key) in keys {
            if selects {
                encode::command(&mut out, &[b"SELECT", db.to_string().as_bytes()]);
            }
            encode::command(&mut out, &[b"DUMP", *key]);
            if self.pexpiretime {
                encode::command(&mut out, &[b"PEXPIRETIME", *key]);
            } else {
                // With the source's own clock PTTL says the same: next to each other, as a DUMP may take its time.
                encode::command(&mut out, &[b"PTTL", *key]);
                encode::command(&mut out, &[b"TIME"]);
            }
        }
        encode::command(&mut out, &[&b"INFO"[..], b"replication"]);
        encode::command(&mut out, &[b"EXEC"]);
        let at = usize::from(selects);
        let of_key = at + if self.pexpiretime { 2 } else { 3 };
        let answers = self.exec(&out, keys.len() * of_key + 3).await?;
        self.db = keys.last().map_or(self.db, |(db, _)| *db);
        let info = answers.last().and_then(Reply::bytes).unwrap_or_default();
        let found = answers.chunks_exact(of_key).take(keys.len()).map(|answer| {
            let ms = answer.get(at + 1).and_then(Reply::integer);
            // Where a server's clock goes on in a transaction (before 6.0), what DUMP has found may have expired since.
            let payload = answer.get(at).and_then(Reply::bytes).filter(|_| ms != Some(GONE)).map(<[u8]>::to_vec);
            let ms = ms.filter(|ms| *ms >= 0);
            let clock_ms = if self.pexpiretime { Some(0) } else { answer.get(at + 2).and_then(Reply::unix_ms) };
            match (ms, clock_ms) {
                (None, _) => Ok(Found { payload, expires_at_ms: None }),
                (Some(ms), Some(clock_ms)) => Ok(Found { payload, expires_at_ms: Some(clock_ms.saturating_add(ms)) }),
                (Some(_), None) => Err(self.unlike(b"TIME", answer.get(at + 2))),
            }
        });
        Ok((found.collect::<Result<_, _>>()?, position(&Info::parse(info))))
    }

    /// The error of an answer that is none to `command`.
    fn unlike(&self, command: &[u8], reply: Option<&Reply>) -> Error {
        Error::Refused {
            side: self.server.side(),
            address: self.server.to_string(),
            command: String::from_utf8_lossy(command).into_owned(),
            words: format!("{reply:?}"),
        }
    }

    /// The keys of a slot, each with its database, all at one moment, and where the stream stood at it.
    ///
    /// # Errors
    /// When the source can't be reached or refuses.
    pub async fn list_slot(&mut self, slot: Slot) -> Result<(Vec<(u32, Vec<u8>)>, Position), Error> {
        let slot = slot.to_string();
        let mut most = SLOT_KEYS;
        loop {
            // Valkey 9 has clusters of more than one database.
            let filled = self.info().await?.keyspace().into_iter().map(|(db, _)| db);
            let databases: Vec<u32> = std::iter::once(0).chain(filled.filter(|db| *db != 0)).collect();
            let selects = databases.len() > 1 || self.db != 0;
            let mut out = Vec::new();
            encode::command(&mut out, &[b"MULTI"]);
            for db in &databases {
                if selects {
                    encode::command(&mut out, &[b"SELECT", db.to_string().as_bytes()]);
                }
                let most = most.to_string();
                encode::command(&mut out, &[&b"CLUSTER"[..], b"GETKEYSINSLOT", slot.as_bytes(), most.as_bytes()]);
            }
            encode::command(&mut out, &[&b"INFO"[..], b"replication"]);
            encode::command(&mut out, &[b"EXEC"]);
            let per_db = if selects { 2 } else { 1 };
            let answers = self.exec(&out, databases.len() * per_db + 3).await?;
            self.db = databases.last().copied().unwrap_or(0);
            let info = answers.last().and_then(Reply::bytes).unwrap_or_default();
            let lists = answers.chunks_exact(per_db).take(databases.len());
            let lists: Vec<&[Reply]> = lists.filter_map(|of| of.last().and_then(Reply::array)).collect();
            if lists.iter().any(|list| list.len() >= most) {
                most *= 8;
                continue;
            }
            let named = databases.iter().zip(lists).flat_map(|(db, list)| list.iter().map(move |key| (*db, key)));
            let keys = named.filter_map(|(db, key)| Some((db, key.bytes()?.to_vec())));
            return Ok((keys.collect(), position(&Info::parse(info))));
        }
    }

    /// Sends a transaction and reads its answers, `answers` of them with EXEC's; returns those of EXEC.
    async fn exec(&mut self, commands: &[u8], answers: usize) -> Result<Vec<Reply>, Error> {
        let conn = self.conn().await?;
        let result = async {
            conn.send(commands).await?;
            let mut refused = None;
            for _ in 1..answers {
                if let Reply::Error(words) = conn.reply().await? {
                    refused.get_or_insert(words);
                }
            }
            match (conn.reply().await?, refused) {
                (_, Some(words)) | (Reply::Error(words), None) => Err(conn.refused(b"MULTI .. EXEC", words)),
                (Reply::Array(answers), None) => match answers.iter().find_map(error) {
                    Some(words) => Err(conn.refused(b"MULTI .. EXEC", words)),
                    None => Ok(answers),
                },
                (other, None) => Err(conn.refused(b"EXEC", format!("{other:?}"))),
            }
        };
        let result = result.await;
        if result.is_err() {
            // Which database is selected now can't be told, either.
            self.conn = None;
        }
        result
    }

    /// One step of listing the keys of database `db`, from `cursor` on, which is `0` again behind the last.
    ///
    /// # Errors
    /// When the source can't be reached or refuses.
    pub async fn scan(&mut self, db: u32, cursor: &mut Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.conn().await?;
        if db != self.db {
            self.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
            self.db = db;
        }
        self.conn().await?.scan(cursor).await
    }
}

fn error(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Error(words) => Some(words.clone()),
        _ => None,
    }
}

/// Where the stream stands by what INFO says.
pub fn position(info: &Info) -> Position {
    Position {
        replid: info.get("master_replid").and_then(|id| ReplId::parse(id.as_bytes())),
        offset: ReplOffset(info.number("master_repl_offset").unwrap_or(0)),
    }
}
