//! What is found out and decided before anything is written.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::finish::OldSource;
use super::holdings::cannot_hold;
use super::members::Members;
use super::modules::Modules;
use super::motion::Motions;
use super::shard::{Feeders, OwnedSlots};
use super::shards::{Start, Watched};
use super::shares::Shares;
use super::sources::{self, Sources};
use super::together::Together;
use super::value::ValueWriter;
use super::{Error, key_hash};
use crate::args::OwnedArgs;
use crate::commands::TargetCaps;
use crate::config::valid::{self, Job};
use crate::config::words::{Existing, OnError};
use crate::delivery::{guard, record};
use crate::filter::Scope;
use crate::journal::{self, Spool};
use crate::net::backoff::Backoff;
use crate::net::cluster::Cluster;
use crate::net::conn::Server;
use crate::net::endpoint::HostPort;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::net::{Side, tls};
use crate::route::Router;
use crate::source;
use crate::status::Status;
use crate::target::checkpoint::{self, Checkpoint};
use crate::target::connect::{self, Identity};
use crate::target::nodes::Target;
use crate::target::owner::{self, Owner};
use crate::target::{self, InScope, cluster, forget, preflight, scan};

/// Connections per target: on two cores four lanes of growing flushes reach what bare pipelining does.
const LANES_DEFAULT: usize = 4;

/// The same for each primary of a cluster: there many flushes are in flight on each, and more connections only make for
/// smaller writes.
const LANES_DEFAULT_CLUSTER: usize = 1;

/// The first version that streams, and can be asked, when keys expire.
const ABSOLUTE_TIMES: (u16, u16, u16) = (7, 0, 0);

/// A job that may begin.
pub struct Plan {
    pub job: Job,
    pub scope: Arc<Scope>,
    pub status: Arc<Status>,
    pub target: Target,
    pub identity: Identity,
    /// The job is this run's for as long as this says.
    pub owner: Arc<Owner>,
    /// Of each shard.
    pub lanes: usize,
    pub writer: ValueWriter,
    pub caps: TargetCaps,
    pub modules: Modules,
    /// How much later than on the source expiries are written, until they're settled.
    pub late_ms: i64,
    /// Sources that only say how long keys have left (before Redis 7.0), of those that there were at the start.
    pub old_sources: Vec<OldSource>,
    /// Whether a key of a target database is one that this job writes.
    pub in_scope: InScope,
    pub sources_of: SourcesOf,
    /// Keys that `--existing keep` leaves as they are, by [`key_hash`].
    pub kept: Option<Arc<HashSet<u64>>>,
    pub shares: Shares,
    pub together: Together,
    pub feeders: Feeders,
    /// Slots that move between the source's shards; `None` for a standalone source.
    pub motions: Option<Arc<Motions>>,
}

/// A job that may begin, with what its shards begin from.
pub struct Prepared {
    pub plan: Arc<Plan>,
    pub starts: Vec<Start>,
    pub watched: Option<Watched>,
}

/// Asks both ends who they are and whether they are fit, takes the job's lease, and makes the target ready.
///
/// The lease is in `owned` from when it's taken, also when what follows fails. `may_be_new`: a job that has no records
/// in the target begins.
/// # Errors
/// When an end can't be reached for too long, or isn't fit; when the job has another owner; when it's not to begin.
pub async fn prepare(
    job: Job,
    scope: Scope,
    status: Arc<Status>,
    may_be_new: bool,
    owned: &mut Option<Arc<Owner>>,
) -> Result<Prepared, Error> {
    let scope = Arc::new(scope);
    let sources = sources::find(&job, &status).await?;
    let target = find_target(&job, &status).await?;
    let found = ask_target(&target, &status, &job).await?;
    let lanes = lanes(&job, &target);
    check_each_apart(&sources, &target, &found, lanes)?;
    let sources_of = sources_of(&job, &scope);
    let in_scope = in_scope(&sources_of, &scope);
    check_databases(&target, &sources, &scope, (&status, job.retry_for)).await?;
    let identity = Identity::new(&job.name, job.unfenced);
    // From here on no former connection of the job can write: what its records say stays true.
    let owner = Arc::new(own(&target, &identity, &status, &job).await?);
    *owned = Some(Arc::clone(&owner));
    end_ended(&target, &identity, &status, &job, may_be_new).await?;
    let late_ms = i64::try_from(job.expiry_grace.as_millis()).unwrap_or(i64::MAX);
    let caps = TargetCaps { expiry_late_ms: late_ms, ..ask_caps(&target, &found, &sources, &status, &job).await? };
    let modules = Modules::new(&found.info, found.modules.clone());
    tell_what_cannot_be_held(&sources, &scope, (&caps, &modules)).await;
    let footer_version = ask_footer(&target, &identity, &status, &job).await?;
    // Whatever passes is waited for: a connection that breaks here is no reason to end.
    let read = async || read_checkpoints(&target, &job.name).await;
    let mut checkpoints = retrying(&status, "target", job.retry_for, read).await?;
    if !job.restart {
        checkpoints.values().try_for_each(|checkpoint| check_checkpoint(checkpoint, &job, &scope, late_ms))?;
    }
    for (shard, checkpoint) in &mut checkpoints {
        let id = identity.of_shard(*shard);
        let take_up = async || take_up_stopped(&target, &id, &job, checkpoint).await;
        retrying(&status, "target", job.retry_for, take_up).await?;
    }
    // Keys in scope are the job's own if it ran before.
    let kept = match checkpoints.is_empty() {
        true if !may_be_new => return Err(Error::NoSuchJob { job: job.name }),
        true => {
            let make_ready = async || make_ready(&job, &target, &identity, &found, &in_scope).await;
            retrying(&status, "target", job.retry_for, make_ready).await?
        }
        false => None,
    };
    remove_stale_spool(&job)?;
    let plan = Plan {
        identity,
        owner,
        lanes,
        writer: ValueWriter::new(&found.info, footer_version, late_ms, job.lossy).rebuilding(lacks_restore(&caps)),
        caps,
        modules,
        late_ms,
        old_sources: Vec::new(),
        in_scope: exempt(in_scope, kept.clone()),
        sources_of,
        kept,
        shares: Shares::new(&job, sources.primaries.len()),
        together: Together::default(),
        feeders: Feeders::default(),
        motions: None,
        scope,
        status,
        target,
        job,
    };
    begin(plan, sources, checkpoints).await
}

fn lacks_restore(caps: &TargetCaps) -> bool {
    let restore = OwnedArgs::new(&["RESTORE"]);
    crate::commands::lookup(restore.args()).is_some_and(|spec| !caps.knows_command(spec))
}

/// Names what the source has, as far as it can be asked, and the target has no place for.
async fn tell_what_cannot_be_held(sources: &Sources, scope: &Scope, (caps, modules): (&TargetCaps, &Modules)) {
    for primary in &sources.primaries {
        // Without that answer less is known before it is met.
        let used = primary.origin.primary_side().ask(&[&b"INFO"[..], b"commandstats"]).await;
        let used = used.ok().and_then(|reply| Some(Info::parse(reply.bytes()?))).unwrap_or_default();
        let of_modules = modules.lacking(&primary.info);
        for what in cannot_hold(&primary.info, &used, scope, caps).into_iter().chain(of_modules) {
            tracing::warn!(source = %primary.origin.primary(), "the target can't hold what the source has: {what}");
        }
    }
}

/// How many connections are made to each primary of the target.
fn lanes(job: &Job, target: &Target) -> usize {
    let default = if target.is_cluster() { LANES_DEFAULT_CLUSTER } else { LANES_DEFAULT };
    job.lanes.map_or(default, usize::from)
}

/// Gives each primary its place among the records.
async fn begin(
    mut plan: Plan,
    sources: Sources,
    mut checkpoints: BTreeMap<u32, Checkpoint>,
) -> Result<Prepared, Error> {
    let ran_before = !checkpoints.is_empty();
    let histories = checkpoints.iter().map(|(shard, checkpoint)| (*shard, checkpoint.job().and_then(|job| job.replid)));
    let assigned = sources::assign(&histories.collect(), &sources.primaries);
    for shard in &assigned.lost {
        tracing::warn!(shard, "no primary of the source goes on with what this shard of the records was");
        let forget = async || remove_shard(&plan, *shard).await;
        retrying(&plan.status, "target", plan.job.retry_for, forget).await?;
        checkpoints.remove(shard);
    }
    if !assigned.lost.is_empty() {
        // Which of its slots went where, and when, can't be told.
        tracing::warn!(reason = "the source has fewer primaries than before", "a new full sync of all shards begins");
        plan.status.error("full sync again");
        for checkpoint in checkpoints.values_mut() {
            if let Some(job) = checkpoint.job() {
                *checkpoint = Checkpoint::Copying { job };
            }
        }
    }
    let mut watched = sources.cluster.map(|cluster| Watched { cluster, members: Members::default() });
    let mut starts = Vec::new();
    for (primary, number) in sources.primaries.into_iter().zip(assigned.numbers) {
        if let (Some(watched), Some(node)) = (&mut watched, &primary.node) {
            watched.members.add(number, node);
        }
        let checkpoint = checkpoints.remove(&number);
        let slots = primary.node.map(|node| OwnedSlots::new(node.slots));
        plan.feeders.add(number, slots.clone());
        let asked = |version| {
            let (source, slots) = (primary.origin.primary().clone(), slots.clone());
            OldSource { number, source, version, slots }
        };
        plan.old_sources.extend(relative_times(&primary.info).map(asked));
        starts.push(Start {
            number,
            source_keys: keys_in_scope(&primary.info, &plan.scope),
            slots,
            origin: primary.origin,
            inherits: ran_before && checkpoint.is_none(),
            checkpoint: checkpoint.unwrap_or(Checkpoint::None),
        });
    }
    if let Some(watched) = &watched {
        plan.motions = Some(Motions::begin(&plan, watched.cluster.clone(), &starts).await?);
    }
    Ok(Prepared { plan: Arc::new(plan), starts, watched })
}

/// Goes on with removing the records where a run was killed in that; the job has none then.
async fn end_ended(target: &Target, id: &Identity, status: &Status, job: &Job, may_be_new: bool) -> Result<(), Error> {
    let end = async || Ok(forget::end_ended(target, id).await?);
    let ended = retrying(status, "target", job.retry_for, end).await?;
    if ended && !may_be_new {
        return Err(Error::JobEnded { job: job.name.clone() });
    }
    Ok(())
}

/// What a dead run of the job left on disk can be had from the source again.
fn remove_stale_spool(job: &Job) -> Result<(), Error> {
    let Some(dir) = &job.spool_dir else { return Ok(()) };
    let failed = |error: std::io::Error| {
        source::Error::from(journal::Error::Write { dir: dir.display().to_string(), error: error.to_string() })
    };
    Spool::remove_stale(dir).map_err(failed)?;
    for folder in Shares::folders(dir).map_err(failed)? {
        Spool::remove_stale(&folder).map_err(failed)?;
    }
    Ok(())
}

/// Looks at each source beside the target, and says who they are.
fn check_each_apart(sources: &Sources, target: &Target, found: &preflight::Found, lanes: usize) -> Result<(), Error> {
    for primary in &sources.primaries {
        check_apart(&primary.info, found)?;
        let (source_server, target_server) = (primary.info.product(), found.info.product());
        tracing::info!(source = %primary.origin.primary(), %target, source_server, target_server, lanes, "connected");
    }
    Ok(())
}

/// Both ends must be servers of their own, neither one and the same nor one a replica of the other.
fn check_apart(source: &Info, target: &preflight::Found) -> Result<(), Error> {
    let run_id = source.get("run_id").unwrap_or_default();
    if !run_id.is_empty() && target.servers.iter().any(|(of_target, _)| of_target == run_id) {
        return Err(Error::SameServer { run_id: run_id.to_owned() });
    }
    // From 4.0 on all servers of a replication chain have the same.
    let replid = source.get("master_replid").unwrap_or_default();
    if !replid.is_empty() && target.servers.iter().any(|(_, of_target)| of_target == replid) {
        return Err(Error::SameHistory { replid: replid.to_owned() });
    }
    Ok(())
}

/// Reads what an earlier run of the job left in the target of one shard.
///
/// # Errors
/// When the target can't be reached.
pub async fn read_checkpoint(target: &Target, id: &Identity, shard: u32) -> Result<Checkpoint, Error> {
    if let Target::Standalone(server) = target {
        let mut conn = server.connect().await.map_err(target::Error::from)?;
        return Ok(checkpoint::read(&mut conn, &id.records()).await?);
    }
    let mut all = cluster::records::read_shards(target, &id.job).await?;
    Ok(all.remove(&shard).unwrap_or(Checkpoint::None))
}

/// The same of all shards, by their numbers.
async fn read_checkpoints(target: &Target, job: &str) -> Result<BTreeMap<u32, Checkpoint>, Error> {
    if let Target::Standalone(server) = target {
        let mut conn = server.connect().await.map_err(target::Error::from)?;
        return Ok(checkpoint::read_shards(&mut conn, job).await?);
    }
    Ok(cluster::records::read_shards(target, job).await?)
}

/// Removes what the target holds of one shard.
///
/// # Errors
/// When the target can't be reached.
pub async fn remove_shard(plan: &Plan, shard: u32) -> Result<(), Error> {
    let Target::Standalone(server) = &plan.target else {
        return Ok(cluster::records::remove_shard(&plan.target, &plan.identity, shard).await?);
    };
    let mut conn = connect::side(server, &plan.identity).await?;
    Ok(checkpoint::remove_shard(&mut conn, &record::of_shard(&plan.job.name, shard)).await?)
}

/// Removes every key of the job from the target.
///
/// # Errors
/// When the target can't be reached.
pub async fn remove_records(target: &Target, id: &Identity) -> Result<u64, Error> {
    Ok(forget::forget(target, id).await?)
}

/// Goes over to the wanted number of lanes, if all stand at one offset.
///
/// # Errors
/// When the target can't be reached.
pub async fn change_lanes(plan: &Plan, id: &Identity) -> Result<(), Error> {
    let mut conn = connect::side(plan.target.standalone()?, id).await?;
    let records = id.records();
    let Checkpoint::Following(following) = checkpoint::read(&mut conn, &records).await? else { return Ok(()) };
    let level = following.resume_point().map(|(_, lowest)| lowest) == Some(following.highest());
    if level && following.lanes() != Some(plan.lanes) {
        let router = Router::new(plan.lanes);
        checkpoint::change_lanes(&mut conn, &records, &following, plan.lanes, |key| router.lane_of(key)).await?;
        tracing::info!(from = following.lanes(), to = plan.lanes, "lanes changed");
    }
    Ok(())
}

/// Takes the job's lease and removes its records from the target; the source isn't asked.
///
/// # Errors
/// When the target can't be reached, has no records of the job, or the job has another owner.
pub async fn forget(job: &Job, status: &Status, owned: &mut Option<Arc<Owner>>) -> Result<(), Error> {
    let target = find_target(job, status).await?;
    let identity = Identity::new(&job.name, job.unfenced);
    let owner = Arc::new(own(&target, &identity, status, job).await?);
    *owned = Some(owner);
    if forget::end_ended(&target, &identity).await? {
        return Ok(());
    }
    if read_checkpoints(&target, &job.name).await?.is_empty() {
        return Err(Error::NoSuchJob { job: job.name.clone() });
    }
    remove_records(&target, &identity).await.map(|_| ())
}

/// Refuses to go on with records that mean something else.
fn check_checkpoint(checkpoint: &Checkpoint, job: &Job, scope: &Scope, late_ms: i64) -> Result<(), Error> {
    let Some(state) = checkpoint.job() else { return Ok(()) };
    let other = if state.scope != scope.fingerprint() {
        "another filter or database map"
    } else if state.late_ms != late_ms.unsigned_abs() {
        "another --expiry-grace"
    } else {
        return Ok(());
    };
    Err(Error::OtherJob { job: job.name.clone(), other })
}

/// Does with the command that stopped an earlier run what this one is told to.
async fn take_up_stopped(target: &Target, id: &Identity, job: &Job, checkpoint: &mut Checkpoint) -> Result<(), Error> {
    let key = record::stopped_key(&id.records());
    let holder = target.holder(&key).await?;
    let mut conn = connect::named(&holder.server, id, "side").await?;
    match target {
        Target::Standalone(server) => owner::check(server, &mut conn, id).await?,
        Target::Cluster(_) => owner::check_in(target, id).await?,
    }
    let stopped = conn.ask(&[&b"GET"[..], &key]).await.map_err(target::Error::from)?;
    let Some(words) = stopped.bytes() else { return Ok(()) };
    let Checkpoint::Following(following) = checkpoint else {
        conn.ask(&[&b"DEL"[..], &key]).await.map_err(target::Error::from)?;
        return Ok(());
    };
    match job.on_error {
        OnError::Stop if !job.restart => {
            let words = String::from_utf8_lossy(words).into_owned();
            return Err(Error::StoppedBefore { job: id.job.clone(), words });
        }
        // What it wrote stays as it is.
        OnError::Skip => {
            let suspects: BTreeSet<_> =
                following.guards.keys.extract_if(|_, at| at.0 == 0).map(|(key, _)| key).collect();
            if target.is_cluster() {
                cluster::records::trust(target, id, &suspects).await?;
            } else {
                let hash = guard::hash_key(&id.records(), 0);
                for (db, key) in suspects {
                    let hdel = [&b"HDEL"[..], &hash, &guard::field(db, &key)];
                    conn.ask(&hdel).await.map_err(target::Error::from)?;
                }
            }
        }
        OnError::Stop | OnError::Recopy => {}
    }
    conn.ask(&[&b"DEL"[..], &key]).await.map_err(target::Error::from)?;
    Ok(())
}

/// Where an end is to be found, and how to get in.
pub(super) fn locator(side: Side, end: &valid::Server) -> Result<Locator, Error> {
    let endpoint = &end.endpoint;
    let server = server(side, end)?;
    let (hosts, map) = (&endpoint.hosts, end.address_map.0.clone());
    Ok(match &endpoint.sentinel {
        Some(primary) => Locator::sentinels(server, hosts, &end.sentinel, primary, map),
        None if hosts.len() > 1 => Locator::seeds(&server, hosts, map),
        None => Locator::fixed(server, map),
    })
}

/// How to get in to an end's servers; at the first of its addresses.
fn server(side: Side, end: &valid::Server) -> Result<Server, Error> {
    let endpoint = &end.endpoint;
    let tls = match endpoint.tls {
        true => Some((tls::connector(side, &end.tls)?, end.tls.clone())),
        false => None,
    };
    let first = endpoint.hosts.first().cloned().unwrap_or(HostPort { host: String::new(), port: 0 });
    let (user, password) = (endpoint.user.clone(), endpoint.password.clone());
    Ok(Server { side, address: first, user, password, tls })
}

/// Finds out whether the target is a server or a cluster, unless the URL says so.
async fn find_target(job: &Job, status: &Status) -> Result<Target, Error> {
    let (end, side) = (&job.target, Side::Target);
    let at = locator(side, end)?;
    let cluster = Cluster::new(server(side, end)?, &end.endpoint.hosts, end.address_map.0.clone());
    // What sentinels watch is no cluster.
    let told = if end.endpoint.sentinel.is_some() { Some(false) } else { end.endpoint.cluster };
    let find = async || Ok(Target::find(at.clone(), cluster.clone(), told).await?);
    retrying(status, "target", job.retry_for, find).await
}

async fn ask_target(target: &Target, status: &Status, job: &Job) -> Result<preflight::Found, Error> {
    let ask = async || Ok(preflight::ask(target, job.allow_eviction).await?);
    retrying(status, "target", job.retry_for, ask).await
}

/// What the target can do, by its version and its own word.
async fn ask_caps(
    target: &Target,
    found: &preflight::Found,
    sources: &Sources,
    status: &Status,
    job: &Job,
) -> Result<TargetCaps, Error> {
    let ask = async || Ok(preflight::lacking(target).await?);
    let lacking = retrying(status, "target", job.retry_for, ask).await?;
    let (valkey, version) = (found.info.is_valkey(), found.info.version());
    let alike = |source: &Info| (source.is_valkey(), source.version()) == (valkey, version);
    let finds_places_alike = sources.primaries.iter().all(|primary| alike(&primary.info));
    Ok(TargetCaps { valkey, version, expiry_late_ms: 0, finds_places_alike, lacking })
}

async fn ask_footer(target: &Target, identity: &Identity, status: &Status, job: &Job) -> Result<u16, Error> {
    let ask = async || Ok(preflight::footer_version(target, identity).await?);
    retrying(status, "target", job.retry_for, ask).await
}

/// Takes the job's lease; from here on nobody else writes for the job.
async fn own(target: &Target, identity: &Identity, status: &Status, job: &Job) -> Result<Owner, Error> {
    let mut takeover = job.takeover;
    let acquire = async || Ok(Owner::acquire(target, identity, &mut takeover).await?);
    retrying(status, "target", job.retry_for, acquire).await
}

/// Tries again while the server isn't reachable or not ready, and says so.
pub(super) async fn retrying<T>(
    status: &Status,
    place: &str,
    retry_for: Option<Duration>,
    mut attempt: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut backoff = Backoff::new(retry_for);
    loop {
        let error = match attempt().await {
            Ok(done) => {
                status.clear(place);
                return Ok(done);
            }
            Err(error) => error,
        };
        let passing = match &error {
            Error::Source(error) => error.is_passing(),
            Error::Target(error) => error.is_passing(),
            _ => false,
        };
        let wait = if passing { backoff.failed(Instant::now()) } else { None };
        let Some(wait) = wait else { return Err(error) };
        status.waiting(place, &error.to_string());
        tokio::time::sleep(wait).await;
    }
}

/// Looks whether the target has every database that the source's go to.
async fn check_databases(
    target: &Target,
    sources: &Sources,
    scope: &Scope,
    (status, retry_for): (&Status, Option<Duration>),
) -> Result<(), Error> {
    let chosen = scope.databases().unwrap_or_default().iter().copied();
    let filled = sources.primaries.iter().flat_map(|primary| primary.info.keyspace()).map(|(db, _)| db);
    let filled = filled.filter(|db| scope.database_in(*db));
    let databases: BTreeSet<u32> = filled.chain(chosen).map(|db| scope.target_database(db)).collect();
    let check = async || Ok(preflight::databases(target, databases.iter().copied()).await?);
    retrying(status, "target", retry_for, check).await
}

/// Does with the keys that are there what `--existing` and `--flush-target` say; returns those that stay.
async fn make_ready(
    job: &Job,
    target: &Target,
    identity: &Identity,
    found: &preflight::Found,
    in_scope: &InScope,
) -> Result<Option<Arc<HashSet<u64>>>, Error> {
    if job.flush_target {
        preflight::flush(target, identity, found.info.version()).await?;
    }
    match job.existing {
        _ if job.flush_target => Ok(None),
        Existing::Refuse => {
            preflight::no_existing_keys(target, &found.filled, |db, key| in_scope(db, key)).await?;
            Ok(None)
        }
        Existing::Replace => Ok(None),
        Existing::Keep => {
            let mut kept = HashSet::new();
            let note = |db: u32, key: &[u8]| {
                if in_scope(db, key) {
                    kept.insert(key_hash(db, key));
                }
            };
            scan::each_key_in(target, &found.filled, note).await?;
            Ok(Some(Arc::new(kept)))
        }
    }
}

/// The source databases that go to a target database.
pub(super) type SourcesOf = Arc<dyn Fn(u32) -> Vec<u32> + Send + Sync>;

fn sources_of(job: &Job, scope: &Arc<Scope>) -> SourcesOf {
    let (scope, map) = (Arc::clone(scope), job.scope.database_map.clone());
    Arc::new(move |target_db| {
        let mapped = map.iter().filter(|(_, to)| **to == target_db).map(|(from, _)| *from);
        let same = (!map.contains_key(&target_db)).then_some(target_db);
        mapped.chain(same).filter(|db| scope.database_in(*db)).collect()
    })
}

/// Whether a key of a target database is one that the scope's source databases write.
fn in_scope(sources_of: &SourcesOf, scope: &Arc<Scope>) -> InScope {
    let (scope, sources_of) = (Arc::clone(scope), Arc::clone(sources_of));
    Arc::new(move |target_db, key| sources_of(target_db).into_iter().any(|db| scope.key_in(db, key)))
}

fn exempt(in_scope: InScope, kept: Option<Arc<HashSet<u64>>>) -> InScope {
    match kept {
        None => in_scope,
        Some(kept) => Arc::new(move |db, key| in_scope(db, key) && !kept.contains(&key_hash(db, key))),
    }
}

fn relative_times(source: &Info) -> Option<(u16, u16, u16)> {
    Some(source.version()).filter(|version| !source.is_valkey() && *version < ABSOLUTE_TIMES)
}

fn keys_in_scope(info: &Info, scope: &Scope) -> u64 {
    info.keyspace().into_iter().filter(|(db, _)| scope.database_in(*db)).map(|(_, keys)| keys).sum()
}
