//! Real clusters on free loopback ports: made without redis-cli, with replicas on request, slots moved, primaries failed.

use crate::client::{Client, Cmd, Reply};
use crate::compare::{Holds, Snapshot, databases};
use crate::server::{FAST, Server};
use crate::wait::{HALF_MINUTE, MINUTE, until};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const SLOTS: u16 = 16384;

/// Settings of every node. Replicas stay with their primaries, so that a test knows where they are.
const CONFIG: &[&str] = &["cluster-enabled yes", "cluster-node-timeout 3000", "cluster-migration-barrier 999"];

/// Keys that one MIGRATE takes along.
const KEYS_A_MIGRATE: usize = 100;

/// A replica gives up a failover in order by itself when its primary doesn't stand still soon enough, and says nothing.
const FAILOVER_AGAIN: Duration = Duration::from_secs(6);

/// How often a command is sent again that a node doesn't serve just then.
const REDIRECTS_MAX: usize = 1000;

/// A running cluster. Nodes are told by their place: first the primaries, then the replicas of the first, and so on.
pub struct Cluster {
    pub nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    /// So many primaries, which share the slots evenly, without replicas.
    pub fn start(name: &str, primaries: usize) -> Cluster {
        Cluster::with(name, primaries, 0, &[])
    }

    /// The same with so many replicas of each primary, and config lines for all nodes.
    pub fn with(name: &str, primaries: usize, replicas: usize, config: &[&str]) -> Cluster {
        let config = [FAST, CONFIG, config].concat();
        let count = primaries * (1 + replicas);
        let nodes = (0..count).map(|_| Server::with(name, &config)).collect();
        Cluster::join(nodes, primaries)
    }

    /// Makes one cluster of servers that are in none; the first `primaries` own the slots.
    pub fn join(nodes: Vec<Server>, primaries: usize) -> Cluster {
        let ids: Vec<String> = nodes.iter().map(|node| node.client().call(&cmd!["CLUSTER", "MYID"]).text()).collect();
        let share = |n: usize| (n * usize::from(SLOTS) / primaries) as u16;
        for (i, node) in nodes.iter().enumerate() {
            let mut client = node.client();
            client.call(&cmd!["CLUSTER", "SET-CONFIG-EPOCH", i + 1]);
            if i < primaries {
                let mut add = cmd!["CLUSTER", "ADDSLOTS"];
                add.extend((share(i)..share(i + 1)).map(|slot| slot.to_string().into_bytes()));
                client.call(&add);
            }
        }
        let cluster = Cluster { nodes, ids };
        for node in &cluster.nodes[1..] {
            let port = if node.has_line("tls-cluster yes") { node.port2 } else { node.port };
            cluster.nodes[0].client().call(&cmd!["CLUSTER", "MEET", "127.0.0.1", port]);
        }
        cluster.until_ok();
        let replicas = (cluster.nodes.len() - primaries) / primaries;
        for i in primaries..cluster.nodes.len() {
            cluster.replicate(i, (i - primaries) / replicas);
        }
        cluster.until_ok();
        cluster
    }

    /// Adds a node without slots; returns its place.
    pub fn add(&mut self) -> usize {
        let node = Server::with(&self.nodes[0].name, &[FAST, CONFIG].concat());
        let mut client = node.client();
        self.ids.push(client.call(&cmd!["CLUSTER", "MYID"]).text());
        client.call(&cmd!["CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port]);
        self.nodes.push(node);
        self.until_ok();
        self.nodes.len() - 1
    }

    /// Ends a node without slots, and has all others forget it.
    pub fn remove(&mut self, node: usize) {
        self.nodes[node].kill();
        for mut other in self.living() {
            other.call(&cmd!["CLUSTER", "FORGET", self.ids[node]]);
        }
    }

    /// All nodes as seeds.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis://{}", hosts.join(","))
    }

    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    pub fn client(&self) -> ClusterClient {
        ClusterClient::new(self.nodes.iter().map(|node| node.port).collect())
    }

    /// Makes a node without slots a replica of another, and waits for the link.
    pub fn replicate(&self, node: usize, primary: usize) {
        let mut client = self.nodes[node].client();
        until(HALF_MINUTE, "a replica knows its primary", || {
            client.ask(&cmd!["CLUSTER", "REPLICATE", self.ids[primary]]).is_ok()
        });
        self.until_linked(node);
    }

    /// Waits until a node is a replica whose primary has sent it everything.
    pub fn until_linked(&self, node: usize) {
        until(HALF_MINUTE, "a replica's link", || {
            let info = self.nodes[node].client().info("replication");
            info.get("master_link_status").map(String::as_str) == Some("up")
        });
    }

    /// Waits until every living node says that the cluster is well, and all agree on who owns what.
    pub fn until_ok(&self) {
        until(MINUTE, "a cluster that is well", || {
            let views = self.living().map(|mut node| view(&mut node)).collect::<Vec<_>>();
            let agreed = views.windows(2).all(|pair| pair[0].is_some() && pair[0] == pair[1]);
            agreed && views.iter().all(Option::is_some) && self.living().all(|mut node| is_ok(&mut node))
        });
    }

    /// A client of each node that answers.
    fn living(&self) -> impl Iterator<Item = Client> {
        self.nodes.iter().filter_map(|node| Client::connect(node.port, None, None).ok())
    }

    /// The node that owns a slot, by the word of the first that answers.
    pub fn owner(&self, slot: u16) -> usize {
        let owner = self.owners_of_slots()[usize::from(slot)];
        owner.unwrap_or_else(|| panic!("nobody owns slot {slot}"))
    }

    /// The nodes that are primaries now and own slots, in order.
    pub fn owners(&self) -> Vec<usize> {
        let all: BTreeSet<usize> = self.owners_of_slots().into_iter().flatten().collect();
        all.into_iter().collect()
    }

    /// The node of each slot.
    fn owners_of_slots(&self) -> Vec<Option<usize>> {
        let mut client = self.living().next().expect("a node that lives");
        let of_port = |port: u16| self.nodes.iter().position(|node| node.port == port);
        ports_of_slots(&mut client).into_iter().map(|port| port.and_then(of_port)).collect()
    }

    /// Moves a slot with its keys to a node, as `redis-cli --cluster reshard` does.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.begin_move(slot, to);
        while self.move_keys(slot, from, to, KEYS_A_MIGRATE) > 0 {}
        self.end_move(slot, from, to);
    }

    /// Marks a slot as moving; returns the node that owns it.
    pub fn begin_move(&self, slot: u16, to: usize) -> usize {
        let from = self.owner(slot);
        self.mark_move(slot, from, to);
        from
    }

    /// The same where not all agree who owns it.
    pub fn mark_move(&self, slot: u16, from: usize, to: usize) {
        let set = |on: usize, state: &str, peer: usize| {
            self.nodes[on].client().call(&cmd!["CLUSTER", "SETSLOT", slot, state, self.ids[peer]]);
        };
        set(to, "IMPORTING", from);
        set(from, "MIGRATING", to);
    }

    /// Moves up to `count` keys of a slot that [`Cluster::begin_move`] marked; returns how many it found.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, count: usize) -> usize {
        self.migrate(slot, (from, to), count, &[])
    }

    fn migrate(&self, slot: u16, (from, to): (usize, usize), count: usize, how: &[&str]) -> usize {
        let mut client = self.nodes[from].client();
        let mut found = 0;
        for db in databases(&mut client) {
            if db > 0 {
                client.select(db);
            }
            let keys = client.call(&cmd!["CLUSTER", "GETKEYSINSLOT", slot, count]);
            if keys.list().is_empty() {
                continue;
            }
            found += keys.list().len();
            let mut migrate = cmd!["MIGRATE", "127.0.0.1", self.nodes[to].port, "", db, 20_000];
            migrate.extend(how.iter().map(|word| word.as_bytes().to_vec()));
            migrate.push(b"KEYS".to_vec());
            migrate.extend(keys.list().iter().map(|key| key.bytes().to_vec()));
            client.call(&migrate);
        }
        found
    }

    /// Gives the slot to its new node, and tells all.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let set = cmd!["CLUSTER", "SETSLOT", slot, "NODE", self.ids[to]];
        // The new owner first: so no moment is without one.
        let others = (0..self.nodes.len()).filter(|n| *n != from && *n != to);
        for node in [to, from].into_iter().chain(others) {
            if let Ok(mut client) = Client::connect(self.nodes[node].port, None, None)
                && is_primary(&mut client)
            {
                let said = client.ask(&set);
                // A bystander that hasn't heard of a failover yet hears of the slot as well, by gossip.
                assert!(said.is_ok() || node != from && node != to, "{}: {said:?}", self.nodes[node].port);
            }
        }
        // A move that begins before all know of the new owner's epoch can be undone by an old owner's claim.
        let epoch = |client: &mut Client, field: &str| {
            let info = client.call(&cmd!["CLUSTER", "INFO"]).text();
            info.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok()).expect("an epoch")
        };
        let of_owner = epoch(&mut self.nodes[to].client(), "cluster_my_epoch:");
        until(MINUTE, "all know the new owner's epoch", || {
            self.living().all(|mut node| epoch(&mut node, "cluster_current_epoch:") >= of_owner)
        });
    }

    /// Leaves a move that was begun: keys that went are brought back first.
    pub fn turn_back(&self, slot: u16, from: usize, to: usize) {
        let stable = |node: usize| self.nodes[node].client().call(&cmd!["CLUSTER", "SETSLOT", slot, "STABLE"]);
        // While the owner gives the slot away it takes no key that it doesn't have.
        stable(from);
        // A load may have made some of them anew meanwhile.
        while self.migrate(slot, (to, from), KEYS_A_MIGRATE, &["REPLACE"]) > 0 {}
        stable(to);
    }

    /// Moves ranges of slots in one piece, where servers can (Valkey 9, Redis 8.4), and waits for it.
    pub fn move_slots_atomically(&self, first: u16, last: u16, to: usize) {
        let from = self.owner(first);
        if self.nodes[from].is_valkey() {
            let words = cmd!["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", self.ids[to]];
            self.nodes[from].client().call(&words);
        } else {
            self.nodes[to].client().call(&cmd!["CLUSTER", "MIGRATION", "IMPORT", first, last]);
        }
        until(MINUTE, "slots that move in one piece", || {
            (first..=last).step_by(usize::from(last - first).max(1)).all(|slot| self.owner(slot) == to)
        });
    }

    /// A living replica of a node, by that node's own word.
    pub fn replica_of(&self, primary: usize) -> Option<usize> {
        let text = self.nodes[primary].client().call(&cmd!["CLUSTER", "NODES"]).text();
        let of_primary = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            words.get(3) == Some(&self.ids[primary].as_str())
                && !words.get(2).is_some_and(|flags| flags.contains("fail"))
        };
        let id = text.lines().find(of_primary)?.split(' ').next()?;
        self.ids.iter().position(|of| of == id)
    }

    /// Kills a primary; its replica is told to take over, and all that live agree that it did.
    pub fn kill_and_promote(&mut self, primary: usize, replica: usize) {
        self.nodes[primary].kill();
        self.promote(replica, "TAKEOVER");
    }

    /// Starts a node again that was killed and replaced, and waits until it follows its heir.
    pub fn rejoin(&mut self, node: usize) {
        self.nodes[node].restart();
        until(MINUTE, "a former primary that follows its heir", || !is_primary(&mut self.nodes[node].client()));
        self.until_linked(node);
        self.until_ok();
    }

    /// The nodes that follow a primary, by the word of the first that answers.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let text = self.living().next().expect("a node that lives").call(&cmd!["CLUSTER", "NODES"]).text();
        let follows = |id: &str| {
            let mut words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            words.any(|words| words[0] == id && words[3] == self.ids[primary])
        };
        (0..self.nodes.len()).filter(|node| follows(&self.ids[*node])).collect()
    }

    /// Waits until the cluster is well, and every replica has its link.
    pub fn until_whole(&self) {
        self.until_ok();
        let owners = self.owners();
        (0..self.nodes.len()).filter(|node| !owners.contains(node)).for_each(|node| self.until_linked(node));
    }

    /// CLUSTER FAILOVER on a replica: `""` hands over in order, `FORCE` doesn't ask the primary, `TAKEOVER` nobody.
    pub fn promote(&self, replica: usize, how: &str) {
        let mut client = self.nodes[replica].client();
        let mut words = cmd!["CLUSTER", "FAILOVER"];
        words.extend((!how.is_empty()).then(|| how.as_bytes().to_vec()));
        client.call(&words);
        let mut asked = Instant::now();
        until(MINUTE, "a replica that takes over", || {
            if asked.elapsed() > FAILOVER_AGAIN {
                // One that has taken over just now refuses.
                let _ = client.ask(&words);
                asked = Instant::now();
            }
            is_primary(&mut client)
        });
        until(MINUTE, "all know who took over", || {
            self.living().all(|mut node| {
                let text = node.call(&cmd!["CLUSTER", "NODES"]).text();
                let mut line = text.lines().filter(|line| line.starts_with(&self.ids[replica]));
                line.next().is_some_and(|line| line.contains("master"))
            })
        });
    }
}

impl Holds for Cluster {
    /// Reads every primary. A key that two of them hold, or that its node doesn't serve, is a failure.
    fn snapshot_where(&self, keep: &dyn Fn(u32, &[u8]) -> bool) -> Snapshot {
        let (mut all, owners) = (Snapshot::new(), self.owners_of_slots());
        for node in self.owners() {
            for (name, entry) in self.nodes[node].snapshot_where(keep) {
                let key = name.1.escape_ascii().to_string();
                assert_eq!(owners[usize::from(slot_of(&name.1))], Some(node), "key {key} is where it doesn't belong");
                assert!(all.insert(name, entry).is_none(), "key {key} is on two nodes");
            }
        }
        all
    }
}

fn is_ok(client: &mut Client) -> bool {
    client.ask(&cmd!["CLUSTER", "INFO"]).is_ok_and(|info| info.text().contains("cluster_state:ok"))
}

fn is_primary(client: &mut Client) -> bool {
    client.info("replication").get("role").map(String::as_str) == Some("master")
}

/// Who owns what and who follows whom, as one node sees it; `None` while it's still being told.
fn view(client: &mut Client) -> Option<BTreeSet<String>> {
    // A node without slots may become a replica, and loads its primary's data.
    let text = client.ask(&cmd!["CLUSTER", "NODES"]).ok()?.text();
    let mut all = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, _, flags, primary, _, _, _, _, slots @ ..] = words.as_slice() else { return None };
        let is = |flag: &str| flags.split(',').any(|f| f == flag);
        if is("handshake") {
            return None;
        }
        // A node that was killed is known to some before others.
        if is("master") && slots.is_empty() && !is("myself") && (is("fail") || is("fail?")) {
            continue;
        }
        let slots: Vec<&&str> = slots.iter().filter(|slot| !slot.starts_with('[')).collect();
        all.insert(format!("{id} {primary} {slots:?}"));
    }
    Some(all)
}

/// The port of each slot's primary, as one node sees it.
fn ports_of_slots(client: &mut Client) -> Vec<Option<u16>> {
    try_ports_of_slots(client).expect("a node that says who owns what")
}

fn try_ports_of_slots(client: &mut Client) -> Option<Vec<Option<u16>>> {
    let mut ports = vec![None; usize::from(SLOTS)];
    for range in client.ask(&cmd!["CLUSTER", "SLOTS"]).ok()?.list() {
        let [first, last, primary, ..] = range.list() else { panic!("a range of slots: {range:?}") };
        let port = u16::try_from(primary.list()[1].int()).expect("a port");
        ports[first.int() as usize..=last.int() as usize].fill(Some(port));
    }
    Some(ports)
}

/// The slot of a key by the rule of the cluster specification; written without keyferry's own.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|b| *b == b'}').filter(|len| *len > 0).map(|len| &rest[..len])
    });
    let mut crc = 0_u16;
    for byte in tag.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % SLOTS
}

/// A client that sends every command to the node that owns its key, and follows what nodes say of slots that moved.
pub struct ClusterClient {
    seeds: Vec<u16>,
    clients: BTreeMap<u16, Client>,
    /// The port of each slot's owner.
    ports: Vec<Option<u16>>,
}

impl ClusterClient {
    fn new(seeds: Vec<u16>) -> ClusterClient {
        let mut client = ClusterClient { seeds, clients: BTreeMap::new(), ports: Vec::new() };
        client.refresh();
        client
    }

    /// Asks who owns what, of the first node that answers.
    pub fn refresh(&mut self) {
        self.clients.clear();
        let seeds = &self.seeds;
        // One may be killed just when it is asked.
        let ask = || seeds.iter().find_map(|port| try_ports_of_slots(&mut Client::connect(*port, None, None).ok()?));
        let mut found = None;
        until(HALF_MINUTE, "a node that says who owns what", || {
            found = ask();
            found.is_some()
        });
        self.ports = found.expect("it was found");
    }

    /// The connection to a slot's owner.
    pub fn of_slot(&mut self, slot: u16) -> &mut Client {
        let port = self.ports[usize::from(slot)].unwrap_or_else(|| panic!("nobody owns slot {slot}"));
        self.of_port(port)
    }

    fn of_port(&mut self, port: u16) -> &mut Client {
        let connect = || Client::connect(port, None, None).unwrap_or_else(|e| panic!("node {port}: {e}"));
        self.clients.entry(port).or_insert_with(connect)
    }

    /// The reply to a command, by its key, which is its second word.
    pub fn call(&mut self, command: &[Vec<u8>]) -> Reply {
        self.call_on(slot_of(&command[1]), command)
    }

    /// The same by its slot.
    pub fn call_on(&mut self, slot: u16, command: &[Vec<u8>]) -> Reply {
        for _ in 0..REDIRECTS_MAX {
            match self.of_slot(slot).ask(command) {
                Ok(reply) => return reply,
                Err(words) if words.starts_with("ASK ") => {
                    let port = words.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
                    let replies = self.of_port(port).pipe(&[cmd!["ASKING"], command.to_vec()]);
                    match replies.into_iter().nth(1) {
                        Some(Reply::Error(words)) if is_passing(&words) => {}
                        Some(Reply::Error(words)) => panic!("{words}"),
                        reply => return reply.expect("a reply"),
                    }
                }
                Err(words) if is_passing(&words) => self.refresh(),
                Err(words) => panic!("{}: {words}", command[0].escape_ascii()),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("slot {slot} isn't served");
    }

    /// The replies to commands of one slot, errors in their places; `None` if its node couldn't be asked or doesn't own it
    /// any more, and who does is asked for.
    pub fn try_pipe_on(&mut self, slot: u16, commands: &[Cmd]) -> Option<Vec<Reply>> {
        let Some(port) = self.ports[usize::from(slot)] else {
            self.refresh();
            return None;
        };
        let replies = match self.clients.entry(port) {
            Entry::Occupied(client) => client.into_mut().try_pipe(commands).ok(),
            Entry::Vacant(place) => {
                let client = Client::connect(port, None, None).ok();
                client.and_then(|client| place.insert(client).try_pipe(commands).ok())
            }
        };
        let refused = |reply: &Reply| matches!(reply, Reply::Error(words) if is_passing(words));
        let whole = replies.as_ref().is_some_and(|replies| !replies.iter().any(refused));
        if !whole {
            self.refresh();
        }
        replies
    }

    /// Commands by their keys, each its second word, in order per node; none may fail.
    pub fn load(&mut self, commands: &[Cmd]) {
        let mut by_port: BTreeMap<u16, Vec<Cmd>> = BTreeMap::new();
        for command in commands {
            let slot = slot_of(&command[1]);
            let port = self.ports[usize::from(slot)].unwrap_or_else(|| panic!("nobody owns slot {slot}"));
            by_port.entry(port).or_default().push(command.clone());
        }
        for (port, commands) in by_port {
            self.of_port(port).load(&commands);
        }
    }
}

/// Whether a node doesn't serve a command only just now.
pub fn is_passing(words: &str) -> bool {
    let words = words.trim_start_matches("An error was signalled by the server - ");
    ["MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY"].iter().any(|w| words.starts_with(w))
}
