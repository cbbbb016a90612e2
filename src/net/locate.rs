//! Where a server is now: at one address, the primary of several, or the primary that sentinels name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Side;
use super::conn::{Conn, Error, Server};
use super::endpoint::{HostPort, parse_host_port};
use super::info::Info;
use super::secret::Secret;
use crate::resp::reply::Reply;

/// How long one of several places may take to say what it knows; then the next is asked.
const ASK_MAX: Duration = Duration::from_secs(5);

/// How long of that the connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Finds the server of one side, anew for each connection, so that a failover is followed.
///
/// `Display` is the address where it was last, or what is known before the first time. A clone shares what is known.
#[derive(Debug, Clone)]
pub struct Locator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    side: Side,
    place: Place,
    /// Announced address to reachable one.
    reachable: BTreeMap<HostPort, HostPort>,
    /// Which of several answered last: it is asked first.
    preferred: AtomicUsize,
    last: Mutex<Option<HostPort>>,
}

#[derive(Debug)]
enum Place {
    /// Whatever it is: a source may be a replica.
    Fixed(Server),
    /// Where it was last said to be: by whoever watches its cluster, or chooses one of several.
    Told { server: Server, at: watch::Sender<HostPort> },
    /// The first that is a primary.
    Seeds(Vec<Server>),
    Sentinels {
        sentinels: Vec<Server>,
        primary: String,
        /// The servers that the sentinels watch, but for the address.
        server: Server,
    },
}

/// Who we are for sentinels, which have users of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SentinelLogin {
    pub user: Option<String>,
    pub password: Option<Secret>,
}

impl Locator {
    /// One server, at its address or what that is mapped to.
    pub fn fixed(server: Server, reachable: BTreeMap<HostPort, HostPort>) -> Self {
        let server = map_to(&server, &reachable, server.address.clone());
        Locator::new(server.side, Place::Fixed(server), reachable)
    }

    /// One server, at its address until [`Locator::tell`] gives another; all clones hear of it.
    pub fn told(server: Server) -> Self {
        let (side, at) = (server.side, watch::Sender::new(server.address.clone()));
        Locator::new(side, Place::Told { server, at }, BTreeMap::new())
    }

    /// The primary among servers that differ from `server` only in their address.
    pub fn seeds(server: &Server, hosts: &[HostPort], reachable: BTreeMap<HostPort, HostPort>) -> Self {
        let seeds = hosts.iter().map(|host| map_to(server, &reachable, host.clone())).collect();
        Locator::new(server.side, Place::Seeds(seeds), reachable)
    }

    /// The server that the sentinels at `hosts` name as the primary `primary`; got in to as `server` says.
    pub fn sentinels(
        server: Server,
        hosts: &[HostPort],
        login: &SentinelLogin,
        primary: &str,
        reachable: BTreeMap<HostPort, HostPort>,
    ) -> Self {
        let sentinel = Server { user: login.user.clone(), password: login.password.clone(), ..server.clone() };
        let sentinels = hosts.iter().map(|host| map_to(&sentinel, &reachable, host.clone())).collect();
        let side = server.side;
        Locator::new(side, Place::Sentinels { sentinels, primary: primary.to_owned(), server }, reachable)
    }

    fn new(side: Side, place: Place, reachable: BTreeMap<HostPort, HostPort>) -> Self {
        let (preferred, last) = (AtomicUsize::new(0), Mutex::default());
        Locator(Arc::new(Shared { side, place, reachable, preferred, last }))
    }

    /// The server is at `address` now. Of no effect unless made by [`Locator::told`].
    pub fn tell(&self, address: HostPort) {
        if let Place::Told { at, .. } = &self.0.place {
            at.send_if_modified(|known| std::mem::replace(known, address.clone()) != address);
        }
    }

    /// Returns when the server was told to be elsewhere than at `address`.
    ///
    /// Cancel-safe.
    pub async fn told_elsewhere(&self, address: &HostPort) {
        if let Place::Told { at, .. } = &self.0.place
            && at.subscribe().wait_for(|at| at != address).await.is_ok()
        {
            return;
        }
        // Nobody tells.
        std::future::pending().await
    }

    pub fn side(&self) -> Side {
        self.0.side
    }

    /// Where the server is now.
    ///
    /// # Errors
    /// `Nowhere` when no place says where, or the server that they name isn't a primary (yet).
    pub async fn locate(&self) -> Result<Server, Error> {
        if let Some(server) = self.0.place.known() {
            return Ok(server);
        }
        self.find().await.map(|(server, _)| server)
    }

    /// Connects to where the server is now.
    ///
    /// # Errors
    /// As for [`Locator::locate`], and when the connection fails.
    pub async fn connect(&self) -> Result<Conn, Error> {
        if let Some(server) = self.0.place.known() {
            return server.connect().await;
        }
        self.find().await.map(|(_, conn)| conn)
    }

    /// Asks one place after the other, beginning with the one that answered last.
    async fn find(&self) -> Result<(Server, Conn), Error> {
        let places = match &self.0.place {
            Place::Fixed(server) | Place::Told { server, .. } => std::slice::from_ref(server),
            Place::Seeds(seeds) => seeds,
            Place::Sentinels { sentinels, .. } => sentinels,
        };
        let first = self.0.preferred.load(Ordering::Relaxed);
        let mut tried = Vec::new();
        for (i, place) in places.iter().enumerate().cycle().skip(first).take(places.len()) {
            match self.ask(place).await {
                Ok((server, conn)) => {
                    self.0.preferred.store(i, Ordering::Relaxed);
                    self.note(&server);
                    return Ok((server, conn));
                }
                Err(error) => tried.push(error),
            }
        }
        let place = match &self.0.place {
            Place::Sentinels { primary, .. } => primary.clone(),
            Place::Fixed(_) | Place::Told { .. } | Place::Seeds(_) => addresses(places),
        };
        Err(Error::Nowhere { side: self.0.side, place, tried })
    }

    async fn ask(&self, place: &Server) -> Result<(Server, Conn), Error> {
        let server = match &self.0.place {
            Place::Fixed(_) | Place::Told { .. } | Place::Seeds(_) => place.clone(),
            Place::Sentinels { primary, server, .. } => {
                let named = in_time(place, ask_sentinel(place, primary)).await;
                let named = named.map_err(|error| Error::Sentinel(Box::new(error)))?;
                map_to(server, &self.0.reachable, named)
            }
        };
        let conn = in_time(&server, connect_to_primary(&server)).await?;
        Ok((server, conn))
    }

    fn note(&self, server: &Server) {
        let address = server.address.clone();
        let before = lock(&self.0.last).replace(address);
        if before.as_ref().is_some_and(|before| *before != server.address) {
            tracing::warn!(side = %self.0.side, address = %server.address, "the primary is another server now");
        }
    }
}

/// A server at its own address.
impl From<Server> for Locator {
    fn from(server: Server) -> Self {
        Locator::fixed(server, BTreeMap::new())
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.place, &*lock(&self.0.last)) {
            (Place::Fixed(server), _) => server.address.fmt(f),
            (Place::Told { at, .. }, _) => at.borrow().fmt(f),
            (_, Some(last)) => last.fmt(f),
            (Place::Seeds(seeds), None) => f.write_str(&addresses(seeds)),
            (Place::Sentinels { sentinels, primary, .. }, None) => write!(f, "{}/{primary}", addresses(sentinels)),
        }
    }
}

impl Place {
    /// The server, where nobody needs to be asked for it.
    fn known(&self) -> Option<Server> {
        match self {
            Place::Fixed(server) => Some(server.clone()),
            Place::Told { server, at } => Some(Server { address: at.borrow().clone(), ..server.clone() }),
            Place::Seeds(_) | Place::Sentinels { .. } => None,
        }
    }
}

fn lock(last: &Mutex<Option<HostPort>>) -> std::sync::MutexGuard<'_, Option<HostPort>> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

fn addresses(servers: &[Server]) -> String {
    let shown: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
    shown.join(",")
}

/// `server` at the address that is reachable for `announced`.
fn map_to(server: &Server, reachable: &BTreeMap<HostPort, HostPort>, announced: HostPort) -> Server {
    let address = reachable.get(&announced).cloned().unwrap_or(announced);
    Server { address, ..server.clone() }
}

async fn in_time<T>(server: &Server, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match timeout(ASK_MAX, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::Timeout { side: server.side, address: server.address.to_string(), after: ASK_MAX }),
    }
}

/// The address that a sentinel names.
async fn ask_sentinel(sentinel: &Server, primary: &str) -> Result<HostPort, Error> {
    let mut conn = sentinel.connect_in(CONNECT_MAX).await?;
    let reply = conn.ask(&[b"SENTINEL", &b"GET-MASTER-ADDR-BY-NAME"[..], primary.as_bytes()]).await?;
    named(&reply).ok_or_else(|| Error::UnknownPrimary {
        side: sentinel.side,
        address: sentinel.address.to_string(),
        primary: primary.to_owned(),
    })
}

/// Host and port of an answer; `None` where it names none.
fn named(reply: &Reply) -> Option<HostPort> {
    let [host, port] = reply.array()? else { return None };
    let text = |reply: &Reply| String::from_utf8(reply.bytes()?.to_vec()).ok();
    let (host, port) = (text(host)?, text(port)?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    parse_host_port(&format!("{host}:{port}"), 0).ok()
}

/// Connects to a server that says it is a primary, or that it belongs to a cluster, which has several.
async fn connect_to_primary(server: &Server) -> Result<Conn, Error> {
    let mut conn = server.connect_in(CONNECT_MAX).await?;
    let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
    let in_cluster = info.get("cluster_enabled") == Some("1");
    match info.get("role") {
        Some(role) if role != "master" && !in_cluster => Err(Error::NotPrimary {
            side: server.side,
            address: server.address.to_string(),
            role: role.replace("slave", "replica"),
        }),
        _ => Ok(conn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(parts: &[&str]) -> Reply {
        Reply::Array(parts.iter().map(|part| Reply::Bulk(part.as_bytes().to_vec())).collect())
    }

    fn server(host: &str, port: u16) -> Server {
        let address = HostPort { host: host.into(), port };
        Server { side: Side::Source, address, user: None, password: Some(Secret::new("servers")), tls: None }
    }

    #[test]
    fn answer_of_a_sentinel_is_read_in_every_form() {
        for (parts, shown) in [
            (&["10.0.0.1", "6379"][..], Some("10.0.0.1:6379")),
            (&["::1", "7"], Some("[::1]:7")),
            (&["db.example", "65535"], Some("db.example:65535")),
            (&["10.0.0.1", "0"], None),
            (&["10.0.0.1", "x"], None),
            (&["", "1"], None),
            (&["10.0.0.1"], None),
        ] {
            assert_eq!(named(&reply(parts)).map(|at| at.to_string()).as_deref(), shown, "{parts:?}");
        }
        assert_eq!(named(&Reply::Null), None);
    }

    #[test]
    fn announced_addresses_are_mapped_and_logins_kept_apart() {
        let at = |host: &str, port| HostPort { host: host.into(), port };
        let map = BTreeMap::from([(at("in", 1), at("out", 2)), (at("s", 26379), at("t", 5))]);
        assert_eq!(Locator::fixed(server("in", 1), map.clone()).to_string(), "out:2");
        assert_eq!(Locator::seeds(&server("", 0), &[at("a", 1), at("in", 1)], map.clone()).to_string(), "a:1,out:2");
        let login = SentinelLogin { user: Some("u".into()), password: Some(Secret::new("sentinels")) };
        let found = Locator::sentinels(server("", 0), &[at("s", 26379)], &login, "main", map);
        assert_eq!(found.to_string(), "t:5/main");
        let Place::Sentinels { sentinels, server, .. } = &found.0.place else { panic!("{found:?}") };
        assert_eq!(sentinels[0].password, login.password);
        assert_eq!((&server.user, &server.password), (&None, &Some(Secret::new("servers"))));
    }

    #[tokio::test]
    async fn told_server_is_where_it_was_last_said_to_be() {
        let at = |port| HostPort { host: "h".into(), port };
        let locator = Locator::told(server("h", 1));
        let clone = locator.clone();
        assert_eq!(locator.locate().await.unwrap().address, at(1));
        let waiting = tokio::spawn(async move { clone.told_elsewhere(&at(1)).await });
        locator.tell(at(1));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        locator.tell(at(2));
        waiting.await.unwrap();
        assert_eq!((locator.locate().await.unwrap().address, locator.to_string()), (at(2), "h:2".to_owned()));
    }

    #[tokio::test]
    async fn place_that_nobody_answers_at_tells_of_each_try() {
        let taken: Vec<_> = (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let hosts: Vec<HostPort> = taken
            .iter()
            .map(|listener| HostPort { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() })
            .collect();
        drop(taken);
        let error = Locator::seeds(&server("", 0), &hosts, BTreeMap::new()).locate().await.unwrap_err();
        let shown = error.to_string();
        assert!(error.is_passing(), "{shown}");
        assert!(hosts.iter().all(|host| shown.matches(&host.to_string()).count() == 2), "{shown}");
    }
}
