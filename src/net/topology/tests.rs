use super::*;
use proptest::prelude::*;

fn asked() -> HostPort {
    place("10.9.9.9:7000")
}

fn place(text: &str) -> HostPort {
    let (host, port) = text.rsplit_once(':').unwrap();
    HostPort { host: host.to_owned(), port: port.parse().unwrap() }
}

/// Calls `read` with a view from [`asked`].
fn seen<T>(tls: bool, map: &[(&str, &str)], read: impl FnOnce(&View<'_>) -> T) -> T {
    let address_map = map.iter().map(|(a, b)| (place(a), place(b))).collect();
    read(&View { asked: &asked(), tls, address_map: &address_map })
}

fn nodes(text: &str) -> Topology {
    seen(false, &[], |view| from_nodes(&bulk(text), view)).unwrap()
}

/// Each primary as `id@address slots health +replica@address`.
fn shown(topology: &Topology) -> Vec<String> {
    let line = |p: &Primary| {
        let replicas = p.replicas.iter().map(|r| format!(" +{}@{} {:?}", r.id, r.address, r.health));
        format!("{}@{} {} {:?}{}", p.id, p.address, p.slots, p.health, replicas.collect::<String>())
    };
    topology.primaries().iter().map(line).collect()
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn list(items: impl IntoIterator<Item = Reply>) -> Reply {
    Reply::Array(items.into_iter().collect())
}

fn int(n: i64) -> Reply {
    Reply::Integer(n)
}

fn shards(reply: &Reply, tls: bool) -> Vec<String> {
    shown(&seen(tls, &[], |view| from_shards(reply, view)).unwrap())
}

fn slots(reply: &Reply) -> Vec<String> {
    shown(&seen(false, &[], |view| from_slots(reply, view)).unwrap())
}

/// A node as CLUSTER SHARDS tells it.
fn shard_node(id: &str, endpoint: Reply, ports: &[(&str, i64)], role: &str, health: &str) -> Reply {
    let mut words = vec![bulk("id"), bulk(id)];
    words.extend(ports.iter().flat_map(|(name, port)| [bulk(name), int(*port)]));
    let rest = [("ip", bulk("10.0.0.1")), ("endpoint", endpoint), ("hostname", bulk("")), ("role", bulk(role))];
    words.extend(rest.into_iter().flat_map(|(name, value)| [bulk(name), value]));
    words.extend([bulk("replication-offset"), int(72156), bulk("health"), bulk(health)]);
    list(words)
}

fn shard(slots: &[i64], nodes: Vec<Reply>) -> Reply {
    list([bulk("slots"), list(slots.iter().copied().map(int)), bulk("nodes"), list(nodes)])
}

#[test]
fn nodes_of_every_version_and_shape_are_read() {
    let topology = nodes(
        "a1 127.0.0.1:30001 myself,master - 0 0 1 connected 0-10 12 [13->-b1] [14-<-c1]\n\
         b1 10.0.0.2:30002@40002 master - 0 1426238316232 2 connected 100-200\n\
         c1 ::1:30003@40003,c.example master - 0 0 3 connected 300\n\
         d1 10.0.0.4:30004@40004,,tls-port=0,shard-id=88 master - 0 0 3 connected\n\
         e1 :30005@40005,e.example master - 0 0 3 connected 400\n\
         a2 10.0.0.1:30011@40011 slave a1 0 1426238316232 4 connected\n\
         a3 10.0.0.1:30012@40012 slave,fail a1 0 1426238316232 4 disconnected\n\
         a4 10.0.0.1:30013@40013 slave,fail? a1 0 1426238316232 4 disconnected\n\
         f1 10.0.0.6:30006@40006 master,fail - 0 0 3 disconnected 500-510\n\
         g1 10.0.0.7:30007@40007 master,fail? - 0 0 3 disconnected 600\n",
    );
    let want = [
        "a1@127.0.0.1:30001 0-10,12 Online +a2@10.0.0.1:30011 Online +a3@10.0.0.1:30012 Failed +a4@10.0.0.1:30013 Suspected",
        "b1@10.0.0.2:30002 100-200 Online",
        "c1@[::1]:30003 300 Online",
        "d1@10.0.0.4:30004  Online",
        "e1@e.example:30005 400 Online",
        "f1@10.0.0.6:30006 500-510 Failed",
        "g1@10.0.0.7:30007 600 Suspected",
    ];
    assert_eq!(shown(&topology), want);
    let motion = |n, direction| Motion { slot: Slot::new(n).unwrap(), node: "a1".into(), direction };
    let want = [motion(13, Direction::MigratingTo("b1".into())), motion(14, Direction::ImportingFrom("c1".into()))];
    assert_eq!(topology.motions(), want);
    assert_eq!(topology.epoch(), 4);
    let owners: Vec<&str> = topology.owners().map(|p| p.id.as_str()).collect();
    assert_eq!(owners, ["a1", "b1", "c1", "e1", "f1", "g1"]);
}

#[test]
fn nodes_that_are_no_members_or_nowhere_are_left_out() {
    let topology = nodes(
        "a1 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383\n\
         b1 10.0.0.2:2@3 handshake - 0 0 2 connected\n\
         c1 10.0.0.2:2@3 master,handshake - 0 0 2 connected 7\n\
         d1 :0@0 master,noaddr - 1 1 2 disconnected 8\n\
         e1 :0 slave,fail,noaddr a1 1 1 2 disconnected\n\
         f1 10.0.0.2:0@3 master - 0 0 2 connected\n\
         g1 10.0.0.2:70000@3 master - 0 0 2 connected\n\
         h1 10.0.0.2 master - 0 0 2 connected\n\
         i1 10.0.0.2:9@10 noflags - 0 0 2 connected\n\
         j1 10.0.0.2:9@10 slave zz 0 0 2 connected\n\
         k1 10.0.0.2:9@10\n\
         \n\
         l1 10.0.0.3:9@10 master - 0 0 2 connected 99999 5-3 x [9] [x->-a1] [77-x-a1]\n",
    );
    assert_eq!(shown(&topology), ["a1@127.0.0.1:1 0-16383 Online", "l1@10.0.0.3:9  Online"]);
    assert!(topology.is_whole() && topology.motions().is_empty());
}

#[test]
fn node_that_knows_no_address_of_its_own_is_where_it_was_asked() {
    let topology = nodes("a1 :7001@17001 myself,master - 0 0 0 connected 0-5\n");
    assert_eq!(shown(&topology), ["a1@10.9.9.9:7001 0-5 Online"]);
}

#[test]
fn whole_is_a_cluster_whose_every_slot_has_one_owner() {
    let line = |id, slots| format!("{id} 10.0.0.1:1@2 master - 0 0 1 connected {slots}\n");
    let whole = nodes(&(line("a", "0-5460 16383") + &line("b", "5461-16382") + &line("c", "")));
    assert!(whole.is_whole() && whole.unowned().is_empty());
    let slot = |n| Slot::new(n).unwrap();
    assert_eq!(whole.owner(slot(16383)).map(|p| p.id.as_str()), Some("a"));
    let hole = nodes(&(line("a", "0-5460") + &line("b", "5462-16383")));
    assert_eq!((hole.is_whole(), hole.unowned().to_string()), (false, "5461".into()));
    let twice = nodes(&(line("a", "0-5461") + &line("b", "5461-16383")));
    assert_eq!((twice.is_whole(), twice.unowned().to_string()), (false, "5461".into()));
    assert_eq!(twice.owner(slot(5461)), None);
    assert!(
        !whole.same_owners(&twice)
            && whole.same_owners(&nodes(&(line("b", "5461-16382") + &line("a", "0-5460 16383"))))
    );
}

#[test]
fn shards_tell_endpoints_of_each_kind() {
    let plain = [("port", 7001), ("tls-port", 8001)];
    let reply = list([
        shard(
            &[0, 5, 10, 10],
            vec![
                shard_node("a2", bulk("10.0.0.2"), &plain, "replica", "online"),
                shard_node("a1", bulk("a.example"), &plain, "master", "online"),
                shard_node("a3", bulk("10.0.0.3"), &plain, "replica", "fail"),
            ],
        ),
        shard(&[20, 20], vec![shard_node("b1", Reply::Null, &plain, "master", "loading")]),
        shard(&[30, 30], vec![shard_node("c1", bulk(""), &plain[..1], "master", "online")]),
        shard(&[40, 40], vec![shard_node("d1", bulk("?"), &plain[1..], "primary", "online")]),
        shard(&[], vec![shard_node("e1", bulk("::1"), &plain, "master", "online")]),
    ]);
    let want = [
        "a1@a.example:7001 0-5,10 Online +a2@10.0.0.2:7001 Online +a3@10.0.0.3:7001 Failed",
        "b1@10.9.9.9:7001 20 Loading",
        "c1@10.9.9.9:7001 30 Online",
        "d1@10.0.0.1:8001 40 Online",
        "e1@[::1]:7001  Online",
    ];
    assert_eq!(shards(&reply, false), want);
    let ports: Vec<String> =
        shards(&reply, true).iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(
        ports,
        ["a1@a.example:8001", "b1@10.9.9.9:8001", "c1@10.9.9.9:7001", "d1@10.0.0.1:8001", "e1@[::1]:8001"]
    );
}

#[test]
fn shard_with_its_failed_primary_belongs_to_the_one_that_is_well() {
    let ports = [("port", 7001)];
    let reply = list([shard(
        &[0, 16383],
        vec![
            shard_node("a1", bulk("10.0.0.1"), &ports, "master", "fail"),
            shard_node("a2", bulk("10.0.0.2"), &ports, "master", "online"),
            shard_node("a3", bulk("10.0.0.3"), &ports, "replica", "online"),
        ],
    )]);
    let want = ["a1@10.0.0.1:7001  Failed", "a2@10.0.0.2:7001 0-16383 Online +a3@10.0.0.3:7001 Online"];
    assert_eq!(shards(&reply, false), want);
}

#[test]
fn slots_of_every_version_are_read() {
    let node3 = |ip: &str, port| list([bulk(ip), int(port)]);
    let of_3_0 = list([
        list([int(0), int(5460), node3("10.0.0.1", 7001), node3("10.0.0.2", 7002)]),
        list([int(5461), int(16383), node3("", 7000)]),
        list([int(5462), int(5463)]),
        list([int(16384), int(16384), node3("10.0.0.1", 7001)]),
        list([int(9), int(9), node3("10.0.0.1", 0)]),
        int(3),
    ]);
    let want = [
        "10.0.0.1:7001@10.0.0.1:7001 0-5460 Online +10.0.0.2:7002@10.0.0.2:7002 Online",
        "10.9.9.9:7000@10.9.9.9:7000 5461-16383 Online",
    ];
    assert_eq!(slots(&of_3_0), want);
    let node7 = |endpoint: Reply, id: &str, more: &[&str]| {
        list([endpoint, int(7001), bulk(id), list(more.iter().map(|m| bulk(m)))])
    };
    let of_7_0 = list([
        list([int(0), int(1), node7(bulk("a.example"), "a1", &["ip", "10.0.0.1"]), node7(bulk("10.0.0.2"), "a2", &[])]),
        list([int(5), int(6), node7(bulk("a.example"), "a1", &[]), node7(bulk("10.0.0.2"), "a2", &[])]),
        list([int(7), int(7), node7(bulk("?"), "b1", &["ip", "10.0.0.3"])]),
        list([int(8), int(8), node7(Reply::Null, "c1", &["ip", "10.0.0.4"])]),
        list([int(9), int(9), node7(bulk("?"), "d1", &[])]),
    ]);
    let want = [
        "a1@a.example:7001 0-1,5-6 Online +a2@10.0.0.2:7001 Online",
        "b1@10.0.0.3:7001 7 Online",
        "c1@10.9.9.9:7001 8 Online",
        "d1@10.9.9.9:7001 9 Online",
    ];
    assert_eq!(slots(&of_7_0), want);
}

#[test]
fn address_map_turns_announced_addresses_into_reachable_ones() {
    let text = "a1 10.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-16383\n\
                a2 ::1:7002@17002 slave a1 0 0 1 connected\n";
    let map = [("10.0.0.1:7001", "127.0.0.1:30001"), ("::1:7002", "h:30002"), ("10.0.0.1:7009", "x:1")];
    let topology = seen(false, &map, |view| from_nodes(&bulk(text), view)).unwrap();
    assert_eq!(shown(&topology), ["a1@127.0.0.1:30001 0-16383 Online +a2@h:30002 Online"]);
    let addresses: Vec<String> = topology.addresses().map(HostPort::to_string).collect();
    assert_eq!(addresses, ["127.0.0.1:30001", "h:30002"]);
}

#[test]
fn addresses_of_another_answer_replace_those_of_the_same_nodes() {
    let by_ip = nodes("a1 10.0.0.1:1@2 master - 0 0 1 connected 0\na2 10.0.0.2:1@2 slave a1 0 0 1 connected\n");
    let by_name = nodes("a2 two:1@2 master - 0 0 1 connected\nb1 b:1@2 master - 0 0 1 connected\n");
    assert_eq!(shown(&by_ip.with_addresses(&by_name)), ["a1@10.0.0.1:1 0 Online +a2@two:1 Online"]);
}

#[test]
fn answers_that_are_no_topology_are_faults() {
    let empty = list([]);
    seen(false, &[], |view| {
        assert_eq!(from_nodes(&bulk(""), view), Err(Fault::NoPrimary));
        assert_eq!(from_nodes(&bulk("a b:1 slave c 0 0 0 connected"), view), Err(Fault::NoPrimary));
        assert_eq!(from_nodes(&empty, view), Err(Fault::Form));
        assert_eq!(from_shards(&empty, view), Err(Fault::NoPrimary));
        assert_eq!(from_slots(&empty, view), Err(Fault::NoPrimary));
        assert_eq!(from_shards(&bulk(""), view), Err(Fault::Form));
        assert_eq!(from_slots(&int(1), view), Err(Fault::Form));
    });
}

#[test]
fn nodes_up_to_the_limit_are_taken_and_one_more_is_not() {
    let text =
        |count: usize| (0..count).map(|n| format!("{n:040} h:1@2 master - 0 0 0 connected\n")).collect::<String>();
    seen(false, &[], |view| {
        assert_eq!(from_nodes(&bulk(&text(NODES_MAX)), view).unwrap().primaries().len(), NODES_MAX);
        assert_eq!(from_nodes(&bulk(&text(NODES_MAX + 1)), view), Err(Fault::TooMany));
    });
    let range = |count: usize| {
        let node = |n: usize| list([bulk("h"), int(1), bulk(&n.to_string())]);
        list([list([int(0), int(1)].into_iter().chain((0..count).map(node)))])
    };
    seen(false, &[], |view| {
        assert!(from_slots(&range(NODES_MAX), view).is_ok());
        assert_eq!(from_slots(&range(NODES_MAX + 1), view), Err(Fault::TooMany));
    });
}

/// Replies in the words that these answers are made of.
fn any_reply() -> impl Strategy<Value = Reply> {
    let names = vec![
        "slots", "nodes", "id", "port", "tls-port", "ip", "endpoint", "role", "master", "replica", "health", "?", "",
    ];
    let leaf = prop_oneof![
        prop::sample::select(names).prop_map(bulk),
        (-2i64..20_000).prop_map(int),
        any::<i64>().prop_map(int),
        Just(Reply::Null),
        prop::collection::vec(any::<u8>(), 0..6).prop_map(Reply::Bulk),
    ];
    leaf.prop_recursive(5, 64, 10, |inner| prop::collection::vec(inner, 0..10).prop_map(Reply::Array))
}

proptest! {
    #[test]
    fn any_reply_is_read_without_panic(reply in any_reply(), tls in any::<bool>()) {
        seen(tls, &[], |view| {
            for read in [from_shards, from_slots, from_nodes] {
                if let Ok(topology) = read(&reply, view) {
                    assert!(Slot::all().all(|slot| topology.owner(slot).is_none_or(|p| p.slots.contains(slot))));
                }
            }
        });
    }

    #[test]
    fn any_text_of_nodes_is_read_without_panic(
        lines in prop::collection::vec(r"[a-c] [:0-9a-f@,.h]{0,12} (master|slave|myself,master|fail,slave)?[a-z,?]{0,3} [\-a-c] 0 0 0 x( [\[\]0-9<>a-]{0,9}){0,4}", 0..6),
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut text = lines.join("\n").into_bytes();
        text.extend(bytes);
        let _ = seen(false, &[], |view| from_nodes(&Reply::Bulk(text), view));
    }

    #[test]
    fn nodes_with_flags_made_up_are_read_without_panic(
        flags in prop::sample::subsequence(vec!["myself", "master", "slave", "fail", "fail?", "noaddr", "handshake"], 0..4),
        place in r"[\[\]:0-9a-f@,.]{0,14}",
        slots in r"( ?[\[\]0-9<>a-]{0,9}){0,5}",
    ) {
        let text = format!("a {place} {} - 0 0 0 connected {slots}\n", flags.join(","));
        if let Ok(topology) = seen(false, &[], |view| from_nodes(&bulk(&text), view)) {
            prop_assert!(topology.primaries().iter().all(|p| p.address.port > 0));
        }
    }
}
