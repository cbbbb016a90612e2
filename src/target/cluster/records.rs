//! What an earlier run of a job has left in a cluster: a record in every slot, floors and guards.

use std::collections::{BTreeMap, BTreeSet};

use crate::delivery::guard::{self, Guards};
use crate::delivery::motion::State;
use crate::delivery::record::{JobState, Phase};
use crate::delivery::refusal::is_redirection;
use crate::delivery::slots::record::{
    Floor, History, SlotRecord, floor_key, guards_key, slot_key, state_key, whole_key,
};
use crate::delivery::slots::{Found, position};
use crate::net::conn::Conn;
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::{Slot, Slots};
use crate::target::Error;
use crate::target::checkpoint::{Checkpoint, Following, Places};
use crate::target::connect::Identity;
use crate::target::nodes::{Open, Target};

/// Questions that are sent before the first is answered.
const AT_A_TIME: usize = 1000;

/// Asks one thing of every slot; `None` where the slot isn't here, or is on the move.
///
/// # Errors
/// When the node can't be reached, or refuses.
async fn each_slot(
    conn: &mut Conn,
    slots: &[Slot],
    ask: impl Fn(Slot) -> Vec<Vec<u8>>,
) -> Result<Vec<(Slot, Option<Reply>)>, Error> {
    let mut all = Vec::with_capacity(slots.len());
    for some in slots.chunks(AT_A_TIME) {
        let mut out = Vec::new();
        some.iter().for_each(|slot| encode::command(&mut out, &ask(*slot)));
        conn.send(&out).await?;
        for slot in some {
            let answer = match conn.reply().await? {
                Reply::Error(words) if is_redirection(&words) => None,
                Reply::Error(words) => return Err(crate::target::refused(conn, b"GET", words)),
                reply => Some(reply),
            };
            all.push((*slot, answer));
        }
    }
    Ok(all)
}

/// The records of slots, without those of slots that aren't here.
///
/// # Errors
/// When the node can't be reached, or another version of keyferry wrote them.
pub async fn read_records(
    conn: &mut Conn,
    job: &str,
    slots: &[Slot],
) -> Result<Vec<(Slot, Option<SlotRecord>)>, Error> {
    let answers = each_slot(conn, slots, |slot| vec![b"GET".to_vec(), slot_key(job, slot)]).await?;
    let bad = |error| Error::Record { address: conn.address().to_owned(), job: job.to_owned(), error };
    let mut records = Vec::with_capacity(answers.len());
    for (slot, answer) in answers {
        if let Some(reply) = answer {
            records.push((slot, reply.bytes().map(SlotRecord::parse).transpose().map_err(bad)?));
        }
    }
    Ok(records)
}

/// The floors of a shard that stand in slots.
///
/// # Errors
/// As for [`read_records`].
pub async fn read_floors(conn: &mut Conn, job: &str, shard: u32, slots: &[Slot]) -> Result<Vec<Floor>, Error> {
    let answers = each_slot(conn, slots, |slot| vec![b"GET".to_vec(), floor_key(job, shard, slot)]).await?;
    let bad = |error| Error::Record { address: conn.address().to_owned(), job: job.to_owned(), error };
    let texts = answers.iter().filter_map(|(_, answer)| answer.as_ref()?.bytes());
    texts.map(|text| Floor::parse(text).map_err(bad)).collect()
}

/// What is said of slots that have moved on the source. One that is to be copied whole begins nowhere.
///
/// # Errors
/// When the node can't be reached or refuses.
pub async fn read_states(conn: &mut Conn, job: &str, slots: &[Slot]) -> Result<Vec<(Slot, State)>, Error> {
    let ask = |slot| vec![b"MGET".to_vec(), state_key(job, slot), whole_key(job, slot)];
    let answers = each_slot(conn, slots, ask).await?;
    let read = |(slot, answer): (Slot, Option<Reply>)| {
        let answer = answer?;
        let [text, whole] = answer.array()? else { return None };
        let state = State::parse(text.bytes()?)?;
        Some((
            slot,
            match state {
                State::Moving { number, .. } if whole.bytes().is_some() => {
                    State::Moving { number, starts: Default::default(), whole: true }
                }
                state => state,
            },
        ))
    };
    Ok(answers.into_iter().filter_map(read).collect())
}

/// What a cluster says of all slots, and which server said so of those in motion.
pub type SlotStates = (BTreeMap<Slot, State>, BTreeMap<Slot, String>);

/// What a cluster says of all slots: of one that never moved, that it is fed by the shard of its record.
///
/// # Errors
/// When a node can't be reached or refuses, or slots are on the move.
pub async fn read_all_states(target: &Target, job: &str) -> Result<SlotStates, Error> {
    let read = async |open: &mut Open| {
        let server = super::past::server(&mut open.conn).await?;
        let slots: Vec<Slot> =
            if is_empty(&mut open.conn).await? { Vec::new() } else { open.node.slots.iter().collect() };
        let records = read_records(&mut open.conn, job, &slots).await?;
        Ok((server, records, read_states(&mut open.conn, job, &slots).await?))
    };
    let (mut states, mut servers) = (BTreeMap::new(), BTreeMap::new());
    for (server, records, said) in target.each(None, read).await? {
        let fed = |r: SlotRecord| State::Fed { shard: r.shard, from: Default::default() };
        states.extend(records.into_iter().filter_map(|(slot, record)| Some((slot, fed(record?)))));
        let moving = said.iter().filter(|(_, state)| matches!(state, State::Moving { .. }));
        servers.extend(moving.map(|(slot, _)| (*slot, server.clone())));
        states.extend(said);
    }
    Ok((states, servers))
}

/// Nothing is said of any slot any more.
///
/// # Errors
/// As for [`read_all_states`]; `OwnerLost`.
pub async fn remove_states(target: &Target, id: &Identity) -> Result<(), Error> {
    let remove = async |open: &mut Open| {
        if is_empty(&mut open.conn).await? {
            return Ok(());
        }
        let slots: Vec<Slot> = open.node.slots.iter().collect();
        let del = |slot| vec![b"DEL".to_vec(), state_key(&id.job, slot), whole_key(&id.job, slot)];
        let answers = each_slot(&mut open.conn, &slots, del).await?;
        written(&open.conn, &answers)
    };
    target.each(Some(id), remove).await.map(|_| ())
}

/// The guards that stand in slots, by slot.
///
/// # Errors
/// When the node can't be reached or refuses.
async fn read_guards(conn: &mut Conn, job: &str, slots: &[Slot]) -> Result<Vec<(Slot, Guards)>, Error> {
    let answers = each_slot(conn, slots, |slot| vec![b"HGETALL".to_vec(), guards_key(job, slot)]).await?;
    let read = |(slot, answer): (Slot, Option<Reply>)| {
        let mut guards = Guards::default();
        for pair in answer.as_ref().and_then(Reply::array).unwrap_or_default().chunks_exact(2) {
            if let [Reply::Bulk(field), Reply::Bulk(value)] = pair {
                guards.read(field, value);
            }
        }
        (!guards.is_empty()).then_some((slot, guards))
    };
    Ok(answers.into_iter().filter_map(read).collect())
}

/// The guards of all slots that a shard feeds.
///
/// # Errors
/// When a node can't be reached or refuses, or slots are on the move.
pub async fn guards(target: &Target, job: &str, feeds: &Slots) -> Result<Guards, Error> {
    let read = async |open: &mut Open| {
        let slots: Vec<Slot> = open.node.slots.iter().filter(|slot| feeds.contains(*slot)).collect();
        read_guards(&mut open.conn, job, &slots).await
    };
    let mut guards = Guards::default();
    for (_, of_slot) in target.each(None, read).await?.into_iter().flatten() {
        guards.extend(of_slot);
    }
    Ok(guards)
}

/// What was read of one node.
struct NodeRead {
    owned: Slots,
    records: Vec<(Slot, Option<SlotRecord>)>,
    floors: Vec<Floor>,
    guards: Vec<(Slot, Guards)>,
    /// Slots that move on the source: nobody feeds them.
    moving: Slots,
}

/// True for a node that has no key, so that not every slot need be asked: what most jobs begin with. One that doesn't say
/// so is taken for filled.
async fn is_empty(conn: &mut Conn) -> Result<bool, Error> {
    Ok(conn.call(&[b"DBSIZE"]).await?.integer() == Some(0))
}

/// Reads what a cluster holds of every shard of `job`, by their numbers; only of those that there is something of.
///
/// # Errors
/// When a node can't be reached, slots are on the move, or another version of keyferry wrote it.
pub async fn read_shards(target: &Target, job: &str) -> Result<BTreeMap<u32, Checkpoint>, Error> {
    let records = async |open: &mut Open| {
        let slots: Vec<Slot> = open.node.slots.iter().collect();
        match is_empty(&mut open.conn).await? {
            true => Ok(Vec::new()),
            false => read_records(&mut open.conn, job, &slots).await,
        }
    };
    let records: Vec<_> = target.each(None, records).await?.into_iter().flatten().collect();
    let mut shards: BTreeSet<u32> = records.iter().filter_map(|(_, record)| record.map(|r| r.shard)).collect();
    // The floors come first, so a job that has only those was killed at its very beginning.
    shards.insert(0);
    let read = async |open: &mut Open| {
        let slots: Vec<Slot> = open.node.slots.iter().collect();
        if is_empty(&mut open.conn).await? {
            let records = slots.into_iter().map(|slot| (slot, None)).collect();
            let owned = open.node.slots.clone();
            return Ok(NodeRead { owned, records, floors: Vec::new(), guards: Vec::new(), moving: Slots::default() });
        }
        let records = read_records(&mut open.conn, job, &slots).await?;
        let mut floors = Vec::new();
        for shard in &shards {
            floors.extend(read_floors(&mut open.conn, job, *shard, &slots).await?);
        }
        let guards = read_guards(&mut open.conn, job, &slots).await?;
        let states = read_states(&mut open.conn, job, &slots).await?;
        let moving = states.iter().filter(|(_, state)| matches!(state, State::Moving { .. }));
        let moving = moving.map(|(slot, _)| *slot).collect();
        Ok(NodeRead { owned: open.node.slots.clone(), records, floors, guards, moving })
    };
    let nodes = target.each(None, read).await?;
    let checkpoints = shards.iter().map(|shard| (*shard, checkpoint(&nodes, *shard)));
    Ok(checkpoints.filter(|(_, checkpoint)| *checkpoint != Checkpoint::None).collect())
}

/// Where one shard stands by what was read.
fn checkpoint(nodes: &[NodeRead], shard: u32) -> Checkpoint {
    let floors = nodes.iter().flat_map(|node| &node.floors).filter(|floor| floor.record.job.shard == shard);
    let newest = floors.max_by_key(|floor| (floor.record.job.generation, floor.record.offset));
    let Some(job) = newest.map(|floor| floor.record.job.clone()) else { return Checkpoint::None };
    // Nobody feeds slots in motion: what their records say only tells where their former feeder goes on.
    let at_rest = |node: &NodeRead, slot: Slot| !node.moving.contains(slot);
    let of_node = |node: &NodeRead| {
        let fed = node.records.iter().filter(|(slot, _)| at_rest(node, *slot));
        fed.map(|(_, record)| *record).collect::<Vec<_>>()
    };
    let records: Vec<Option<SlotRecord>> = nodes.iter().flat_map(of_node).collect();
    let of_shard = || records.iter().flatten().filter(|record| record.shard == shard);
    let generation = of_shard().map(|record| record.generation).max().unwrap_or(0).max(job.generation);
    let job = JobState { generation, ..job };
    // A slot without a record has lost it, whoever fed it.
    let lost = records.iter().any(Option::is_none);
    let whole = of_shard().all(|r| r.generation == generation && r.phase == Phase::Following);
    if lost || !whole || of_shard().next().is_none() {
        return Checkpoint::Copying { job };
    }
    let mut positions = Vec::new();
    let mut guards = Guards::default();
    for node in nodes {
        let found = Found::new(0, node.owned.clone(), Vec::new(), node.floors.clone());
        let ours = |slot: &Slot| node.records.iter().any(|(of, r)| of == slot && r.is_some_and(|r| r.shard == shard));
        for (slot, record) in &node.records {
            let record =
                record.as_ref().filter(|r| r.shard == shard && (at_rest(node, *slot) || r.generation == generation));
            let at = record.and_then(|record| position(record, found.floor(*slot, generation, shard, None)));
            positions.extend(at.map(|at| (*slot, at)));
        }
        let mine = node.guards.iter().filter(|(slot, _)| ours(slot));
        mine.for_each(|(_, of_slot)| guards.extend(of_slot.clone()));
    }
    positions.sort();
    let replid = replid(nodes, shard, of_shard());
    let time_ms = written_ms(nodes, shard);
    let at = Places::Slots { job: JobState { replid, ..job }, positions, time_ms };
    Checkpoint::Following(Following { at, guards })
}

/// When each node's floors of a shard were written last; of the node where that is longest ago.
fn written_ms(nodes: &[NodeRead], shard: u32) -> i64 {
    let of_node = |node: &NodeRead| {
        let ours = node.floors.iter().map(|floor| &floor.record).filter(|record| record.job.shard == shard);
        ours.map(|record| record.time_ms).max()
    };
    nodes.iter().filter_map(of_node).min().unwrap_or(i64::MAX)
}

/// The name of the history that the highest record speaks of. Where no floor has that in full, the newest floor's: what was
/// applied under the one name and then the other is one history, and the source knows if it isn't.
fn replid<'a>(
    nodes: &[NodeRead],
    shard: u32,
    records: impl Iterator<Item = &'a SlotRecord>,
) -> Option<crate::offset::ReplId> {
    let highest = records.max_by_key(|record| record.offset)?;
    let floors = nodes.iter().flat_map(|node| &node.floors).map(|floor| &floor.record);
    let ours: Vec<_> = floors.filter(|record| record.job.shard == shard).collect();
    let newest = ours.iter().max_by_key(|record| (record.job.generation, record.offset))?.job.replid;
    let named = ours.iter().filter_map(|record| record.job.replid);
    named.into_iter().find(|replid| History::of(replid) == highest.history).or(newest)
}

/// Removes what a cluster holds of one shard, whose primary is no more.
///
/// # Errors
/// When a node can't be reached or refuses, or slots are on the move.
pub async fn remove_shard(target: &Target, id: &Identity, shard: u32) -> Result<(), Error> {
    let remove = async |open: &mut Open| {
        let slots: Vec<Slot> = open.node.slots.iter().collect();
        let records = read_records(&mut open.conn, &id.job, &slots).await?;
        let of_shard = |(_, record): &&(Slot, Option<SlotRecord>)| record.is_some_and(|record| record.shard == shard);
        let mine: Vec<Slot> = records.iter().filter(of_shard).map(|(slot, _)| *slot).collect();
        let del = |slot| vec![b"DEL".to_vec(), slot_key(&id.job, slot), guards_key(&id.job, slot)];
        each_slot(&mut open.conn, &mine, del).await?;
        let floor = |slot| vec![b"DEL".to_vec(), floor_key(&id.job, shard, slot)];
        each_slot(&mut open.conn, &slots, floor).await?;
        Ok(())
    };
    target.each(Some(id), remove).await.map(|_| ())
}

/// Says on a node that a copy has begun, whatever an earlier one left there: first the floor, which tells what kind of job
/// it is; then the records; and behind them what stood elsewhere in an earlier copy goes.
///
/// # Errors
/// When the node can't be reached or refuses.
pub async fn write_first(
    conn: &mut Conn,
    job: &str,
    floor: &Floor,
    records: &[(Slot, SlotRecord)],
) -> Result<(), Error> {
    let slots: Vec<Slot> = records.iter().map(|(slot, _)| *slot).collect();
    let text = |record: &SlotRecord| {
        let mut text = Vec::new();
        record.encode(&mut text);
        text
    };
    let texts: BTreeMap<Slot, Vec<u8>> = records.iter().map(|(slot, record)| (*slot, text(record))).collect();
    let lowest: Vec<Slot> = slots.iter().min().copied().into_iter().collect();
    let shard = floor.record.job.shard;
    let set_floor = |slot| vec![b"SET".to_vec(), floor_key(job, shard, slot), floor.encode().into_bytes()];
    let set = |slot| vec![b"SET".to_vec(), slot_key(job, slot), texts.get(&slot).cloned().unwrap_or_default()];
    let del = |slot| vec![b"DEL".to_vec(), guards_key(job, slot)];
    let answers = each_slot(conn, &lowest, set_floor).await?;
    written(conn, &answers)?;
    failpoint!("first-record");
    let answers = each_slot(conn, &slots, set).await?;
    written(conn, &answers)?;
    let answers = each_slot(conn, &slots, del).await?;
    written(conn, &answers)
}

/// Every slot must have taken it.
fn written(conn: &Conn, answers: &[(Slot, Option<Reply>)]) -> Result<(), Error> {
    match answers.iter().find(|(_, answer)| answer.is_none()) {
        None => Ok(()),
        Some((slot, _)) => Err(Error::Moving { address: conn.address().to_owned(), slot: slot.number() }),
    }
}

/// Notes keys, with their source databases, that can't be trusted: a later process, too, copies them again.
///
/// # Errors
/// When a node can't be reached or refuses, or slots are on the move.
pub async fn note_suspects(target: &Target, id: &Identity, keys: &BTreeSet<(u32, Vec<u8>)>) -> Result<(), Error> {
    let set = |db: u32, key: &[u8]| {
        vec![b"HSET".to_vec(), guards_key(&id.job, Slot::of(key)), guard::field(db, key), b"0".to_vec()]
    };
    each_key(target, id, keys, set).await
}

/// Takes back that keys can't be trusted.
///
/// # Errors
/// As for [`note_suspects`].
pub async fn trust(target: &Target, id: &Identity, keys: &BTreeSet<(u32, Vec<u8>)>) -> Result<(), Error> {
    let del = |db: u32, key: &[u8]| vec![b"HDEL".to_vec(), guards_key(&id.job, Slot::of(key)), guard::field(db, key)];
    each_key(target, id, keys, del).await
}

async fn each_key(
    target: &Target,
    id: &Identity,
    keys: &BTreeSet<(u32, Vec<u8>)>,
    command: impl Fn(u32, &[u8]) -> Vec<Vec<u8>>,
) -> Result<(), Error> {
    let work = async |open: &mut Open| {
        for (db, key) in keys.iter().filter(|(_, key)| open.node.slots.contains(Slot::of(key))) {
            crate::target::ask(&mut open.conn, &command(*db, key)).await?;
            failpoint!("suspect-noted");
        }
        Ok(())
    };
    target.each(Some(id), work).await.map(|_| ())
}
