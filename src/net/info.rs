//! What INFO says of a server.

use std::collections::{BTreeMap, HashMap};

/// What stands before a module's name in its field here.
const MODULE: &str = "module ";

/// The fields of an INFO answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Info(HashMap<String, String>);

impl Info {
    pub fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let fields = text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(':'));
        // One line for each module, all of one name.
        let name = |k: &str, v: &str| match v.strip_prefix("name=").and_then(|v| v.split(',').next()) {
            Some(module) if k == "module" => format!("{MODULE}{module}"),
            _ => k.to_owned(),
        };
        Info(fields.map(|(k, v)| (name(k, v), v.trim_end().to_owned())).collect())
    }

    /// The modules that are loaded, with their versions (told since 6.0, see [`Info::add_module`]).
    pub fn modules(&self) -> BTreeMap<String, u64> {
        let version = |line: &str| line.split(',').find_map(|word| word.strip_prefix("ver="))?.parse().ok();
        let modules = self.0.iter().filter_map(|(field, line)| Some((field.strip_prefix(MODULE)?, line)));
        modules.map(|(name, line)| (name.to_owned(), version(line).unwrap_or(0))).collect()
    }

    /// Adds a module that another question told of.
    pub fn add_module(&mut self, name: &str, version: i64) {
        self.0.insert(format!("{MODULE}{name}"), format!("name={name},ver={version}"));
    }

    pub fn get(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// True for Valkey; its INFO also has a `redis_version` that it only claims for old clients.
    pub fn is_valkey(&self) -> bool {
        self.get("valkey_version").is_some()
    }

    /// The server's own version: `(8, 1, 1)`. Zeros where it says none.
    pub fn version(&self) -> (u16, u16, u16) {
        let text = self.get("valkey_version").or_else(|| self.get("redis_version")).unwrap_or_default();
        let mut parts = text.split('.').map(|p| p.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (next(), next(), next())
    }

    /// `redis 7.0.15`, `valkey 9.1.2`.
    pub fn product(&self) -> String {
        let name = if self.is_valkey() { "valkey" } else { "redis" };
        let (major, minor, patch) = self.version();
        format!("{name} {major}.{minor}.{patch}")
    }

    /// Keys per database, in order.
    pub fn keyspace(&self) -> Vec<(u32, u64)> {
        let keys = |text: &str| text.strip_prefix("keys=")?.split(',').next()?.parse().ok();
        let line = |(field, text): (&String, &String)| Some((field.strip_prefix("db")?.parse().ok()?, keys(text)?));
        let mut all: Vec<(u32, u64)> = self.0.iter().filter_map(line).collect();
        all.sort_unstable();
        all
    }

    /// How far each connected replica is, by its own word (`slave0:ip=..,port=..,state=online,offset=..`).
    pub fn replica_offsets(&self) -> Vec<u64> {
        let offset = |line: &String| line.split(',').find_map(|w| w.strip_prefix("offset="))?.parse().ok();
        self.0.iter().filter(|(field, _)| is_replica(field)).filter_map(|(_, line)| offset(line)).collect()
    }

    /// Host and port of each connected replica that has come to follow the stream.
    pub fn online_replicas(&self) -> Vec<(String, u16)> {
        let mut found: Vec<(&String, &String)> = self.0.iter().filter(|(field, _)| is_replica(field)).collect();
        found.sort();
        let read = |line: &str| {
            let word = |name: &str| line.split(',').find_map(|w| w.strip_prefix(name));
            // Who says no port of its own, as keyferry doesn't, can't be asked for anything.
            let port = word("port=")?.parse().ok().filter(|port| *port > 0)?;
            (word("state=") == Some("online")).then_some((word("ip=")?.to_owned(), port))
        };
        found.into_iter().filter_map(|(_, line)| read(line)).collect()
    }

    /// How many keys of a database expire.
    pub fn expires(&self, db: u32) -> u64 {
        self.of_database(db, "expires=")
    }

    /// How many hashes of a database have fields that expire; 0 where servers have no such fields.
    pub fn expiring_hashes(&self, db: u32) -> u64 {
        // Redis since 7.4, Valkey since 9.0.
        self.of_database(db, "subexpiry=").max(self.of_database(db, "keys_with_volatile_items="))
    }

    fn of_database(&self, db: u32, name: &str) -> u64 {
        let line = self.get(&format!("db{db}")).unwrap_or_default();
        let field = line.split(',').find_map(|field| field.strip_prefix(name));
        field.and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

fn is_replica(field: &str) -> bool {
    field.strip_prefix("slave").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_names_every_module_with_its_version() {
        let mut info = Info::parse(b"# Modules\r\nmodule:name=bf,ver=20802,api=1\r\nmodule:name=ReJSON,ver=x\r\n");
        info.add_module("graph", 7);
        let expected = [("ReJSON", 0), ("bf", 20802), ("graph", 7)].map(|(name, ver)| (name.to_owned(), ver));
        assert_eq!(info.modules(), expected.into());
        assert!(Info::parse(b"module_fork_in_progress:0\r\n").modules().is_empty());
    }

    #[test]
    fn info_of_a_valkey_tells_its_own_version_and_keys() {
        let info = Info::parse(
            b"# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\n\r\n# Keyspace\r\ndb10:keys=7,expires=0,avg_ttl=0\r\ndb2:keys=3,expires=1,avg_ttl=5\r\n",
        );
        assert!(info.is_valkey());
        assert_eq!(info.version(), (9, 1, 2));
        assert_eq!(info.product(), "valkey 9.1.2");
        assert_eq!(info.keyspace(), [(2, 3), (10, 7)]);
        assert_eq!((info.expires(2), info.expires(10), info.expires(0)), (1, 0, 0));
    }

    #[test]
    fn replicas_that_can_be_read_are_online_and_have_a_port() {
        let info = Info::parse(
            b"slave_repl_offset:5\r\nslave0:ip=10.0.0.1,port=7001,state=online,offset=5,lag=0\r\n\
              slave1:ip=10.0.0.2,port=7002,state=wait_bgsave,offset=0,lag=0\r\n\
              slave2:ip=10.0.0.3,port=0,state=online,offset=5,lag=0\r\n\
              slave3:ip=::1,port=7003,state=online,offset=5,lag=0,type=replica\r\n",
        );
        assert_eq!(info.online_replicas(), [("10.0.0.1".to_owned(), 7001), ("::1".to_owned(), 7003)]);
        assert_eq!(info.replica_offsets().len(), 4);
    }

    #[test]
    fn expiring_hashes_are_told_by_redis_and_valkey() {
        let info = Info::parse(
            b"db0:keys=2,expires=0,avg_ttl=0,subexpiry=2\r\ndb1:keys=5,expires=1,avg_ttl=9,keys_with_volatile_items=4\r\ndb2:keys=1,expires=1\r\n",
        );
        assert_eq!([0, 1, 2, 3].map(|db| info.expiring_hashes(db)), [2, 4, 0, 0]);
    }
}
