//! Opening the connections to one node of a cluster, so that nothing of an earlier connection can still arrive.

use crate::net::cluster::Cluster;
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::net::topology::Primary;
use crate::target::connect::{self, Identity};
use crate::target::nodes::Target;
use crate::target::{Error, owner};

/// A node, just connected.
pub struct Connected {
    pub conns: Vec<Conn>,
    pub run_id: String,
    /// Its run id and the name of its history.
    pub identity: String,
}

/// Connects all lanes to a node anew: names them, looks whether the job is still this run's, kills what is left there of
/// earlier rounds and of other runs. Records are read behind that.
///
/// # Errors
/// `OwnerLost` when another run has the job; when the node can't be reached, is no primary, or refuses.
pub async fn connect(
    (target, cluster): (&Target, &Cluster),
    primary: &Primary,
    id: &Identity,
    lanes: usize,
) -> Result<Connected, Error> {
    let round = id.next_round();
    let server = cluster.server(primary.address.clone());
    let at = Locator::fixed(server.clone(), Default::default());
    let mut conns = Vec::with_capacity(lanes);
    let mut told: Option<(String, String)> = None;
    for lane in 0..lanes {
        let mut conn = server.connect().await?;
        connect::set_name(&at, &mut conn, id, &id.name(round, &lane.to_string())).await?;
        let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
        let role = info.get("role").unwrap_or("master");
        if role != "master" {
            return Err(Error::NotPrimary { address: at.to_string(), role: role.replace("slave", "replica") });
        }
        let word = |name| info.get(name).unwrap_or_default().to_owned();
        let this = (word("run_id"), word("master_replid"));
        if told.get_or_insert_with(|| this.clone()) != &this {
            return Err(Error::TwoServers { address: at.to_string() });
        }
        conns.push(conn);
    }
    owner::check_in(target, id).await?;
    let first = conns.first_mut().ok_or(Error::OutOfStep { address: at.to_string() })?;
    connect::kill(&at, first, id, round).await?;
    let (run_id, replid) = told.unwrap_or_default();
    let identity = format!("{run_id}/{replid}");
    Ok(Connected { conns, run_id, identity })
}
