//! What a source holds before the copy, and what is written to it during the stream: every type in its encodings, every
//! write command with its options, as far as the source knows them.

use crate::client::{Client, Cmd, Reply};
use crate::compare::now_ms;
use crate::load::{Mix, load_function, random_command, type_commands};
use crate::server::Server;

const DAY_MS: i64 = 86_400_000;

/// `since command`: since Redis 5.0, hence on every Valkey; `8.0/9.0`: since those of each; `-`: never there.
const HELD: &str = "
0 SELECT 3
0 SET other:db v
0 RPUSH other:list a b c
0 SELECT 0
5.0 XADD xtomb 1-1 f 1
5.0 XADD xtomb 2-1 f 2
5.0 XADD xtomb 3-1 f 3
5.0 XGROUP CREATE xtomb g 0
5.0 XREADGROUP GROUP g c COUNT 3 STREAMS xtomb >
5.0 XDEL xtomb 2-1
5.0 XADD xlast 1-1 f 1
5.0 XADD xlast 2-1 f 2
5.0 XGROUP CREATE xlast g 0
5.0 XREADGROUP GROUP g c COUNT 2 STREAMS xlast >
5.0 XDEL xlast 2-1
5.0 XGROUP CREATE xnone g 0 MKSTREAM
5.0 XADD xtrim 1-1 f 1
5.0 XADD xtrim 2-1 f 2
5.0 XGROUP CREATE xtrim g 0
5.0 XREADGROUP GROUP g c COUNT 2 STREAMS xtrim >
5.0 XTRIM xtrim MAXLEN 0
7.0 XGROUP CREATE xtomb h 2-1 ENTRIESREAD 2
8.6/- XADD xidmp IDMP p1 i1 * a 1
8.6/- XADD xidmp IDMP p2 i1 * a 2
8.6/- XADD xset 1-1 f v
8.6/- XCFGSET xset IDMP-DURATION 50
8.8/- XADD xnack 1-1 f 1
8.8/- XADD xnack 2-1 f 2
8.8/- XGROUP CREATE xnack g 0
8.8/- XREADGROUP GROUP g c COUNT 2 STREAMS xnack >
8.8/- XNACK xnack g FAIL IDS 1 2-1 RETRYCOUNT 5
8.0/- VADD vec VALUES 3 1 2 3 e1
8.0/- VADD vec VALUES 3 3 2 1 e2 SETATTR {\"n\":1}
8.0/- VADD vecq VALUES 2 1 2 e1 NOQUANT
8.0/- VADD vecb VALUES 2 1 2 e1 BIN
8.8/- ARSET arr 3 x 5 2.5 0.1
8.8/- ARSET arr 1000000 far
8.8/- ARINSERT arr2 a b c
8.8/- ARSEEK arr2 50
8.10/- HIMPORT PREPARE p id name
8.10/- HIMPORT SET tmpl:1 p 7 bob
8.10/- HIMPORT SET tmpl:2 p 8 elisabeth-the-second-who-was-a-queen-of-a-united-kingdom-for-seventy-years-and-some
7.4/9.0 HMSET hfe a 1 b 2 c 3
7.4/9.0 HPEXPIREAT hfe {far} FIELDS 1 a
7.4/9.0 HPEXPIRE hfe 900 FIELDS 1 b
7.4/9.0 HMSET hfe:dies a 1
7.4/9.0 HPEXPIRE hfe:dies 1200 FIELDS 1 a";

/// In this order, on one connection.
///
/// INCRBYFLOAT of a key that expires is left to 6.0, HINCRBYFLOAT of a field that does to 8.2 and Valkey 9.1: what older servers stream for
/// it takes the expiry away on every replica.
const WRITTEN: &str = "
0 SET w:s v
0 SET w:s:ex v EX 1000
0 SET w:s:px v PX 100000
0 SET w:s:soon v PX 300
0 SET w:s:nx v NX
0 SET w:s v2 XX
6.0 SET w:s:ex v3 KEEPTTL
6.2 SET w:s:pxat v PXAT {far}
6.2 SET w:s:exat v EXAT {far_s}
6.2 SET w:s v4 GET
8.4/8.1 SET w:ifeq v5
8.4/8.1 SET w:ifeq v6 IFEQ v5
8.4/- SET w:ifeq v7 IFNE other
0 SETNX w:s:setnx v
0 SETEX w:s:setex 1000 v
0 PSETEX w:s:psetex 100000 v
0 GETSET w:s v8
6.2 GETDEL w:s:nx
6.2 GETEX w:s:px PERSIST
6.2 GETEX w:s:setnx PX 900000
6.2 GETEX w:s:setex EXAT {far_s}
0 MSET w:del1 v w:del2 v w:del3 v w:del4 v
8.4/- DELEX w:del1
8.4/- DELEX w:del2 IFEQ v
-/9.0 DELIFEQ w:del3 v
0 MSET w:m1 a w:m2 b
0 MSETNX w:m3 a w:m4 b
8.4/9.1 MSETEX 2 w:m5 a w:m6 b EX 1000
8.4/9.1 MSETEX 2 w:m5 c w:m6 d XX KEEPTTL
8.4/9.1 MSETEX 1 w:m7 a NX PXAT {far}
0 APPEND w:s tail
0 INCR w:n
0 DECR w:n2
0 INCRBY w:n 10
0 DECRBY w:n 3
0 INCRBYFLOAT w:f 1.5
6.0 PEXPIREAT w:n {far}
0 INCRBYFLOAT w:n 0.25
8.8/- INCREX w:n3 BYINT 5
0 SETRANGE w:s 2 xx
0 SETBIT w:bit 7 1
0 SETBIT w:bit2 3 1
3.2 BITFIELD w:bf SET u8 0 200 INCRBY i5 100 1
0 BITOP AND w:and w:bit w:bit2
0 BITOP OR w:or w:bit w:bit2
0 BITOP XOR w:xor w:bit w:bit2
0 BITOP NOT w:not w:bit
8.2/- BITOP DIFF w:diff w:bit w:bit2
8.2/- BITOP ANDOR w:andor w:bit w:bit2
8.2/- BITOP ONE w:one w:bit w:bit2
0 PFADD w:hll1 a b c
0 PFADD w:hll2 c d
0 PFMERGE w:hll3 w:hll1 w:hll2
0 PFCOUNT w:hll1
0 DEL w:m1 w:m3
4.0 UNLINK w:m2 w:m4
0 SET w:e v
0 EXPIRE w:e 1000
0 PEXPIRE w:e 2000000
0 EXPIREAT w:e {far_s}
0 PEXPIREAT w:e {far}
0 PERSIST w:e
7.0 EXPIRE w:e 5000 NX
7.0 EXPIRE w:e 6000 GT
7.0 PEXPIREAT w:e {far} XX
7.0 EXPIRE w:e 4000 LT
0 SET w:past v
0 EXPIRE w:past -1
0 SET w:r1 v
0 RENAME w:r1 w:r2
0 RENAMENX w:r2 w:r3
6.2 COPY w:s w:cp
6.2 COPY w:s w:cp DB 3 REPLACE
6.2 COPY w:s w:cp2 DB 3
0 SET w:mv v
0 MOVE w:mv 3
0 RPUSH w:sort 3 1 2
0 SORT w:sort STORE w:sorted
0 SORT w:sort DESC LIMIT 0 2 STORE w:sorted2
0 SELECT 4
0 SET w:flushed v
0 FLUSHDB
0 SET w:after v
0 SELECT 0
4.0 SWAPDB 3 4
0 RPUSH w:l 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
0 LPUSH w:l z
0 LPUSHX w:l y
0 RPUSHX w:l x
4.0 RPUSHX w:l p q
4.0 LPUSHX w:l p q
0 LINSERT w:l BEFORE 3 bc
0 LINSERT w:l AFTER 3 ac
0 LSET w:l 0 zz
0 LREM w:l 1 9
0 LTRIM w:l 0 40
0 LPOP w:l
0 RPOP w:l
6.2 LPOP w:l 2
6.2 RPOP w:l 3
0 RPOPLPUSH w:l w:l2
0 BRPOPLPUSH w:l w:l2 1
6.2 LMOVE w:l w:l2 LEFT RIGHT
6.2 LMOVE w:l w:l2 LEFT LEFT
6.2 LMOVE w:l w:l2 RIGHT RIGHT
6.2 LMOVE w:l w:l RIGHT LEFT
6.2 BLMOVE w:l2 w:l RIGHT LEFT 1
0 BLPOP w:l 1
0 BRPOP w:l 1
7.0 LMPOP 2 w:nolist w:l LEFT COUNT 2
7.0 BLMPOP 1 1 w:l RIGHT COUNT 2
8.10/- LMOVEM w:l w:lm LEFT RIGHT COUNT 3 OBO
8.10/- LMOVEM w:l w:lm LEFT LEFT EXACTLY 2 BULK
8.10/- LMOVEM w:l w:lm LEFT RIGHT COUNT 2 BULK
0 SADD w:t a b c d e f g h
0 SREM w:t a
0 SPOP w:t
3.2 SPOP w:t 2
0 SADD w:t1 a b c
0 SADD w:t2 b c d
0 SMOVE w:t1 w:t2 a
0 SINTERSTORE w:ti w:t1 w:t2
0 SUNIONSTORE w:tu w:t1 w:t2
0 SDIFFSTORE w:td w:t2 w:t1
0 ZADD w:z 1 a 2 b 3 c 4 d 5 e 6 f
3.0 ZADD w:z NX 9 n
3.0 ZADD w:z XX CH 8 n
3.0 ZADD w:z INCR 1.5 a
3.0 ZADD w:z NX CH 1 p 2 q 3 a
6.2 ZADD w:z GT 100 a
6.2 ZADD w:z LT CH 0 b 7 zz
6.2 ZADD w:z GT INCR 2 a
0 ZINCRBY w:z 2.25 c
0 ZREM w:z d
0 ZADD w:z2 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h 9 i 10 j 11 k 12 l 13 m
0 ZREMRANGEBYRANK w:z2 0 0
0 ZREMRANGEBYSCORE w:z2 2 (3
0 ZADD w:zlex 0 a 0 b 0 c
0 ZREMRANGEBYLEX w:zlex [a (b
5.0 ZPOPMIN w:z2
5.0 ZPOPMAX w:z2 2
5.0 BZPOPMIN w:z2 1
7.0 ZMPOP 1 w:z2 MIN COUNT 2
7.0 BZMPOP 1 1 w:z2 MAX
0 ZUNIONSTORE w:zu 2 w:z w:z2 WEIGHTS 2 3 AGGREGATE MAX
0 ZINTERSTORE w:zi 2 w:z w:z2 AGGREGATE SUM
6.2 ZDIFFSTORE w:zd 2 w:z w:z2
6.2 ZRANGESTORE w:zr w:z2 0 3
6.2 ZRANGESTORE w:zr2 w:z 2 9 BYSCORE REV LIMIT 0 1
8.8/- ZUNIONSTORE w:zc 2 w:z w:z2 AGGREGATE COUNT
3.2 GEOADD w:g 13.361389 38.115556 p 15.087269 37.502669 q
3.2 GEORADIUS w:g 15 37 200 km STORE w:gs
3.2 GEORADIUSBYMEMBER w:g p 300 km STORE w:gm
6.2 GEOADD w:g XX CH 13.4 38.1 p
6.2 GEOSEARCHSTORE w:gss w:g FROMLONLAT 15 37 BYRADIUS 200 km
6.2 GEOSEARCHSTORE w:gsd w:g FROMMEMBER p BYBOX 400 400 km STOREDIST
-/9.0 GEOSEARCHSTORE w:gp w:g BYPOLYGON 3 10 30 20 30 15 45
0 HMSET w:h a 1 b 2
0 HSET w:h c 3
4.0 HSET w:h d 4 e 5
0 HSETNX w:h f 6
0 HDEL w:h a
0 HINCRBY w:h b 5
0 HINCRBYFLOAT w:h g 1.5
7.4/9.0 HSET w:hx a 1 b 2 c 3 d 4 e 5 f 6 g 7
7.4/9.0 HEXPIRE w:hx 1000 FIELDS 2 a b
7.4/9.0 HPEXPIRE w:hx 900000 NX FIELDS 1 c
7.4/9.0 HPEXPIREAT w:hx {far} FIELDS 1 d
7.4/9.0 HEXPIREAT w:hx {far_s} XX FIELDS 1 a
7.4/9.0 HPEXPIRE w:hx 300 FIELDS 1 e
7.4/9.0 HPEXPIRE w:hx 0 FIELDS 1 f
7.4/9.0 HPERSIST w:hx FIELDS 1 b
7.4/9.0 HPEXPIREAT w:hx {farther} GT FIELDS 2 d g
7.4/9.0 HPEXPIREAT w:hx {far} LT FIELDS 2 d b
8.2/9.1 HINCRBYFLOAT w:hx a 0.5
7.4/9.0 COPY w:hx w:hxc
7.4/9.0 RENAME w:hxc w:hxr
7.4/9.0 HSET w:hx d replaced
8.0/9.0 HGETEX w:hx EX 5000 FIELDS 1 g
8.0/9.0 HGETEX w:hx PERSIST FIELDS 1 c
8.0/9.0 HSETEX w:hy EX 1000 FIELDS 2 a 1 b 2
8.0/9.0 HSETEX w:hy FNX PXAT {far} FIELDS 1 c 3
8.0/9.0 HSETEX w:hy FXX KEEPTTL FIELDS 1 a 9
8.0/9.0 HSETEX w:hy FIELDS 1 b 9
8.0/9.1 HGETDEL w:hy FIELDS 1 c
8.10/- HIMPORT PREPARE q x y
8.10/- HIMPORT SET w:tmpl q 1 2
8.10/- HSET w:tmpl z 3
5.0 XADD w:x 1-1 f v
5.0 XADD w:x 2 f v
5.0 XADD w:x * f v
5.0 XADD w:x MAXLEN ~ 100 * f v g w
5.0 XADD w:x MAXLEN 3 * f v
6.2 XADD w:x NOMKSTREAM * f v
6.2 XADD w:x MINID 2-0 * f v
6.2 XADD w:x MINID ~ 2-0 LIMIT 10 * f v
7.0 XADD w:x 99999999999999-* f v
5.0 XADD w:x2 1-1 f v
5.0 XADD w:x2 2-1 f v
5.0 XADD w:x2 3-1 f v
5.0 XADD w:x2 4-1 f v
5.0 XADD w:x2 5-1 f v
5.0 XADD w:x2 6-1 f v
5.0 XGROUP CREATE w:x2 g 0
5.0 XGROUP CREATE w:x2 h $
5.0 XGROUP CREATE w:x2 i 0
5.0 XGROUP CREATE w:mk g $ MKSTREAM
7.0 XGROUP CREATE w:x2 er 2-1 ENTRIESREAD 2
5.0 XREADGROUP GROUP g c1 COUNT 3 STREAMS w:x2 >
5.0 XREADGROUP GROUP g c2 COUNT 1 NOACK STREAMS w:x2 >
5.0 XREADGROUP GROUP g c2 COUNT 1 STREAMS w:x2 >
5.0 XREADGROUP GROUP i c3 COUNT 2 STREAMS w:x2 >
5.0 XACK w:x2 g 1-1
5.0 XCLAIM w:x2 g c2 0 2-1
6.2 XAUTOCLAIM w:x2 g c4 0 0 COUNT 1
6.2 XGROUP CREATECONSUMER w:x2 g c5
5.0 XGROUP DELCONSUMER w:x2 i c3
5.0 XGROUP SETID w:x2 h 2-1
7.0 XGROUP SETID w:x2 h 3-1 ENTRIESREAD 3
5.0 XGROUP DESTROY w:x2 i
5.0 XDEL w:x2 6-1
5.0 XSETID w:x2 7-1
7.0 XSETID w:x2 8-1 ENTRIESADDED 20 MAXDELETEDID 7-1
5.0 XTRIM w:x2 MAXLEN 4
6.2 XTRIM w:x2 MINID 3-0
8.2/- XADD w:x3 1-1 f v
8.2/- XADD w:x3 2-1 f v
8.2/- XADD w:x3 3-1 f v
8.2/- XADD w:x3 4-1 f v
8.2/- XADD w:x3 5-1 f v
8.2/- XGROUP CREATE w:x3 g 0
8.2/- XREADGROUP GROUP g c COUNT 4 STREAMS w:x3 >
8.2/- XDELEX w:x3 KEEPREF IDS 1 1-1
8.2/- XDELEX w:x3 DELREF IDS 1 2-1
8.2/- XACKDEL w:x3 g KEEPREF IDS 1 3-1
8.2/- XADD w:x3 MAXLEN 2 DELREF 6-1 f v
8.2/- XTRIM w:x3 MAXLEN 1 ACKED
8.4/- XREADGROUP GROUP g c2 CLAIM 0 COUNT 1 STREAMS w:x3 >
8.6/- XADD w:x4 IDMP p1 i1 * f v
8.6/- XADD w:x4 IDMP p1 i1 * f v
8.6/- XADD w:x4 IDMP p1 i2 * f v
8.6/- XADD w:x5 1-1 f v
8.6/- XCFGSET w:x5 IDMP-DURATION 50
8.8/- XADD w:x6 1-1 f 1
8.8/- XADD w:x6 2-1 f 2
8.8/- XGROUP CREATE w:x6 g 0
8.8/- XREADGROUP GROUP g c COUNT 2 STREAMS w:x6 >
8.8/- XNACK w:x6 g FAIL IDS 1 2-1
8.8/- ARSET w:a 3 x y z
8.8/- ARMSET w:a 7 q 1000 r
8.8/- ARINSERT w:a i j
8.8/- ARDEL w:a 4
8.8/- ARDELRANGE w:a 0 1
8.8/- ARSEEK w:a 60
8.8/- ARRING w:ar 4 a b c d e
8.0/- VADD w:v VALUES 3 1 2 3 e1
8.0/- VADD w:v VALUES 3 3 2 1 e2
8.0/- VSETATTR w:v e1 {\"n\":2}
8.0/- VREM w:v e2
0 MULTI
0 SET w:tx v
0 RPUSH w:txl a
0 INCR w:txn
0 SELECT 3
0 SET w:txd v
0 SELECT 0
0 EXEC";

/// Fills a source with everything that it knows.
pub fn load(server: &Server) {
    let mut client = server.client();
    let known: Vec<Cmd> =
        type_commands(server, 1, "").into_iter().filter_map(|cmd| as_known(server.version(), cmd)).collect();
    client.load(&known);
    load_function(server, &mut client);
    run(server, &mut client, HELD);
}

/// Writes each line, what lines can't say, and a random load of `random` writes.
pub fn write(server: &Server, random: usize) {
    let mut client = server.client();
    run(server, &mut client, WRITTEN);
    restores(server, &mut client);
    functions_and_scripts(server, &mut client);
    let seed = fastrand::u64(..);
    println!("{}: random writes of seed {seed}", server.name);
    let (mut rng, mix) = (fastrand::Rng::with_seed(seed), Mix::of(server));
    let commands: Vec<Cmd> = (0..random).flat_map(|_| random_command(&mut rng, &mix)).collect();
    // What an old server doesn't know it refuses.
    client.pipe(&commands);
}

/// A command of [`type_commands`] as an older server knows it.
fn as_known(version: (u32, u32), mut cmd: Cmd) -> Option<Cmd> {
    let name = String::from_utf8_lossy(&cmd[0]).into_owned();
    match name.as_str() {
        "GEOADD" if version < (3, 2) => return None,
        _ if name.starts_with('X') && version < (5, 0) => return None,
        "HSET" if version < (4, 0) => cmd[0] = b"HMSET".to_vec(),
        _ => {}
    }
    Some(cmd)
}

/// Whether a server has what the first word of a line says.
fn has(server: &Server, since: &str) -> bool {
    let (redis, valkey) = since.split_once('/').unwrap_or((since, "0"));
    let least = if server.is_valkey() { valkey } else { redis };
    if least == "-" {
        return false;
    }
    let mut parts = least.split('.').map(|n| n.parse::<u32>().expect("a version"));
    let least = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    server.version() >= least
}

/// Runs the lines that the server knows; none of them may fail.
fn run(server: &Server, client: &mut Client, lines: &str) {
    let far = now_ms() / 1000 * 1000 + 7 * DAY_MS;
    let words = |line: &str| -> Cmd {
        let times = [("{far}", far + 77), ("{far_s}", far / 1000), ("{farther}", far + DAY_MS)];
        let time = |word: &str| times.iter().find(|(name, _)| *name == word).map(|(_, at)| at.to_string());
        line.split(' ').map(|word| time(word).unwrap_or_else(|| word.to_owned()).into_bytes()).collect()
    };
    let lines = lines.lines().filter_map(|line| line.split_once(' '));
    let known: Vec<&str> = lines.filter(|(since, _)| has(server, since)).map(|(_, line)| line).collect();
    let commands: Vec<Cmd> = known.iter().map(|line| words(line)).collect();
    for (line, reply) in known.iter().zip(client.pipe(&commands)) {
        assert!(!reply.is_error(), "{}: {line}: {reply:?}", server.name);
    }
}

/// RESTORE in its forms, with payloads of the server's own.
fn restores(server: &Server, client: &mut Client) {
    let far = now_ms() + 7 * DAY_MS;
    for key in ["w:s", "w:l", "w:t", "w:z", "w:h", "w:hx", "w:x2", "w:a"] {
        let Reply::Bytes(payload) = client.call(&cmd!["DUMP", key]) else { continue };
        let to = |n: u32| format!("{key}:restored:{n}");
        client.call(&cmd!["RESTORE", to(1), 0, payload]);
        client.call(&cmd!["RESTORE", to(2), 100_000, payload]);
        if has(server, "3.0") {
            client.call(&cmd!["RESTORE", to(1), 0, payload, "REPLACE"]);
        }
        if has(server, "5.0") {
            client.call(&cmd!["RESTORE", to(3), far, payload, "ABSTTL"]);
            client.call(&cmd!["RESTORE", to(4), far, payload, "ABSTTL", "REPLACE", "IDLETIME", 5]);
        }
    }
}

fn functions_and_scripts(server: &Server, client: &mut Client) {
    let script = "redis.call('INCR',KEYS[1]); redis.call('RPUSH',KEYS[2],redis.call('GET',KEYS[1])); return 1";
    for _ in 0..2 {
        client.call(&cmd!["EVAL", script, 2, "w:ev", "w:evl"]);
    }
    let Reply::Bytes(sha) = client.call(&cmd!["SCRIPT", "LOAD", script]) else { panic!("SCRIPT LOAD") };
    client.call(&cmd!["EVALSHA", sha, 2, "w:ev", "w:evl"]);
    if !has(server, "7.0") {
        return;
    }
    let library = |name: &str| {
        format!(
            "#!lua name={name}\nredis.register_function('{name}', function(k,a) return redis.call('INCR',k[1]) end)"
        )
    };
    client.call(&cmd!["FUNCTION", "LOAD", library("one")]);
    let Reply::Bytes(dump) = client.call(&cmd!["FUNCTION", "DUMP"]) else { panic!("FUNCTION DUMP") };
    client.call(&cmd!["FUNCTION", "LOAD", library("two")]);
    client.call(&cmd!["FUNCTION", "DELETE", "two"]);
    client.call(&cmd!["FUNCTION", "RESTORE", dump, "FLUSH"]);
    client.call(&cmd!["FUNCTION", "LOAD", "REPLACE", library("three")]);
    client.call(&cmd!["FCALL", "one", 1, "w:fn"]);
}
