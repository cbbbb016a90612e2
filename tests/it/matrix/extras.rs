//! What a server holds besides what the comparer reads: function libraries, vector sets, arrays, idempotent producers.

use super::losses::Loss;
use crate::client::{Client, Reply};
use crate::compare::{databases, is_own_record, scan};
use crate::server::Server;
use std::collections::BTreeMap;

/// Things by a name, each with the loss that it would be.
#[derive(Debug, Default)]
pub struct Extras(BTreeMap<String, (Loss, Reply)>);

impl Extras {
    pub fn of(server: &Server) -> Extras {
        let mut all = Extras::default();
        let mut client = server.client();
        if let Ok(Reply::List(libraries)) = client.ask(&cmd!["FUNCTION", "LIST", "WITHCODE"]) {
            for library in libraries {
                let part = |name: &str| library.field(name).cloned().unwrap_or(Reply::Nil);
                all.add(format!("library {:?}", part("library_name")), Loss::Functions, part("library_code"));
            }
        }
        for db in databases(&mut client) {
            client.select(db);
            let mut keys = scan(&mut client);
            keys.retain(|key| !is_own_record(key));
            let asks: Vec<_> = keys.iter().map(|key| cmd!["TYPE", key]).collect();
            let kinds = client.pipe(&asks);
            for (key, kind) in keys.iter().zip(kinds) {
                let kind = kind.text();
                let name = format!("{kind} {db}:{}", key.escape_ascii());
                match kind.as_str() {
                    "vectorset" => all.add(name, Loss::VectorSets, vectors(&mut client, key)),
                    "array" => all.add(name, Loss::Arrays, array(&mut client, key)),
                    "stream" => all.idempotency(&name, &mut client, key),
                    _ => {}
                }
            }
        }
        all
    }

    fn add(&mut self, name: String, loss: Loss, value: Reply) {
        self.0.insert(name, (loss, value));
    }

    fn idempotency(&mut self, name: &str, client: &mut Client, key: &[u8]) {
        let Ok(info) = client.ask(&cmd!["XINFO", "STREAM", key]) else { return };
        // What isn't set apart from a new stream is no loss.
        for (part, usual) in [("idmp-duration", 100), ("idmp-maxsize", 100), ("pids-tracked", 0), ("iids-tracked", 0)] {
            if let Some(value) = info.field(part).filter(|value| **value != Reply::Int(usual)) {
                self.add(format!("{name} {part}"), Loss::Idempotency, value.clone());
            }
        }
    }

    /// What the other lacks or has in another way, but for losses.
    pub fn differences(&self, other: &Extras, losses: &[Loss]) -> Vec<String> {
        // Idempotent producers are a part of a stream.
        let is_lost =
            |loss: &Loss| losses.contains(loss) || *loss == Loss::Idempotency && losses.contains(&Loss::Streams);
        let wanted = self.0.iter().filter(|(_, (loss, _))| !is_lost(loss));
        let mut lines: Vec<String> = wanted
            .filter(|(name, (_, value))| other.0.get(*name).map(|(_, found)| found) != Some(value))
            .map(|(name, (_, value))| format!("{name}: {value:?} != {:?}", other.0.get(name)))
            .collect();
        let more = other.0.keys().filter(|name| !self.0.contains_key(*name));
        lines.extend(more.map(|name| format!("extra {name}")));
        lines
    }
}

/// Every element with its vector and its attributes.
fn vectors(client: &mut Client, key: &[u8]) -> Reply {
    let Ok(Reply::List(mut elements)) = client.ask(&cmd!["VRANDMEMBER", key, 100_000]) else { return Reply::Nil };
    elements.sort_unstable();
    let mut all = vec![client.call(&cmd!["VDIM", key])];
    for element in elements {
        let ask = [cmd!["VEMB", key, element.bytes()], cmd!["VGETATTR", key, element.bytes()]];
        all.push(element);
        all.extend(client.pipe(&ask));
    }
    Reply::List(all)
}

/// Every element with its index, and where the next one is inserted.
fn array(client: &mut Client, key: &[u8]) -> Reply {
    let ask = [cmd!["ARLEN", key], cmd!["ARSCAN", key, 0, u64::MAX - 1], cmd!["ARNEXT", key]];
    Reply::List(client.pipe(&ask))
}
