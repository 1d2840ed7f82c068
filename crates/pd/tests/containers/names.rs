//! Names of containers, and their visibility to others.

use super::{pd, stderr, stdout, Net};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn containers_know_each_other_by_name() {
    let net = Net::new(10);
    let first = net.sleeper("first", Some(&net.ip(2)));
    let ask = "import socket, sys; print(*(socket.gethostbyname(name) for name in sys.argv[1:]), \
               socket.gethostbyname(socket.gethostname()))";
    let own_and_other = |suffix: &str, other: &str| {
        net.output(suffix, Some(&net.ip(7)), &["python3", "-c", ask, &net.name(other), "localhost"])
    };
    assert_eq!(stdout(&own_and_other("second", "first")), "10.97.10.2 127.0.0.1 10.97.10.7\n");
    // The file has later containers as well, and no ended ones.
    let second = net.sleeper("second", Some(&net.ip(3)));
    let inside = |name: &str| {
        pd(&["exec", &net.name("first"), "--", "getent", "ahostsv4", &net.name(name)]).output().unwrap()
    };
    assert!(stdout(&inside("second")).starts_with("10.97.10.3 "), "{}", stderr(&inside("second")));
    assert!(stdout(&inside("first")).starts_with("10.97.10.2 "));
    drop(second);
    assert!(!inside("second").status.success());
    // The table is read-only, and the host's own stays unchanged.
    let written =
        pd(&["exec", &net.name("first"), "--", "sh", "-c", "echo 1.2.3.4 x >>/etc/hosts"]).output().unwrap();
    assert!(!written.status.success());
    assert!(!std::fs::read_to_string("/etc/hosts").unwrap().contains(&net.name("first")));
    drop(first);
    assert!(!Path::new("/run/pd/hosts").join(&net.bridge).exists());
    net.assert_clean();
}

/// Asks the C library that it is linked with for the address of each name.
const RESOLVES: &str = "
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int n = 1; n < count; n++) {
        struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
        char text[64] = {0};
        int error = getaddrinfo(names[n], NULL, &hints, &found);
        if (!error) inet_ntop(AF_INET, &((struct sockaddr_in *)found->ai_addr)->sin_addr, text, sizeof text);
        puts(error ? gai_strerror(error) : text);
    }
}
";

const RESOLVES_GO: &str = "package main
import (\"context\"; \"fmt\"; \"net\"; \"os\")
func main() { for _, name := range os.Args[1:] {
    found, err := net.DefaultResolver.LookupIP(context.Background(), \"ip4\", name)
    if err != nil { fmt.Println(err) } else { fmt.Println(found[0]) }
} }
";

/// A host may ask other sources first, which do not know containers and end the search.
#[test]
fn every_resolver_reads_the_table_of_hosts_first() {
    let net = Net::new(132);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("resolves.c"), RESOLVES).unwrap();
    std::fs::write(at("resolves.go"), RESOLVES_GO).unwrap();
    std::fs::write(at("switch"), "passwd: files\nhosts: dns [!SUCCESS=return] files\n").unwrap();
    let first = net.sleeper("first", Some(&net.ip(2)));
    let compilers: [&[&str]; 3] =
        [&["gcc", "-o"], &["musl-gcc", "-static", "-o"], &["env", "CGO_ENABLED=0", "go", "build", "-o"]];
    for compiler in compilers {
        let source = at(if compiler.contains(&"go") { "resolves.go" } else { "resolves.c" });
        let program = at("resolves");
        match Command::new(compiler[0]).args(&compiler[1..]).args([&program, &source]).status() {
            Ok(status) if status.success() => {}
            other => {
                eprintln!("SKIPPED: {compiler:?}: {other:?}");
                continue;
            }
        }
        let run = net.run("second", Some(&net.ip(3)), &[&program, &net.name("first"), &net.name("second")]);
        let script = "mount --bind \"$0\" /etc/nsswitch.conf && exec \"$@\"";
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, &at("switch")])
            .arg(run.get_program())
            .args(run.get_args())
            .output()
            .unwrap();
        assert_eq!(stdout(&output), "10.97.132.2\n10.97.132.3\n", "{compiler:?}: {}", stderr(&output));
    }
    drop(first);
    net.assert_clean();
}

/// A C library reads the table with each question.
#[test]
fn programs_that_run_find_who_comes_later() {
    let net = Net::new(116);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let source = RESOLVES
        .replace(
            "int main(int count, char **names) {",
            "int main(void) {\n    char name[256], *names[] = {name};",
        )
        .replace("int n = 1; n < count; n++", "int n = 0; scanf(\"%255s\", name) == 1; fflush(stdout)");
    std::fs::write(at("asks.c"), source).unwrap();
    for compiler in [&["gcc"][..], &["musl-gcc", "-static"]] {
        let build =
            Command::new(compiler[0]).args(&compiler[1..]).args(["-o", &at("asks"), &at("asks.c")]).status();
        if !build.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: {compiler:?} is missing");
            continue;
        }
        let mut run = net.run("asks", Some(&net.ip(7)), &[&at("asks")]);
        let mut asks = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut to, mut from) = (asks.stdin.take().unwrap(), BufReader::new(asks.stdout.take().unwrap()));
        let mut finds = || {
            writeln!(to, "{}", net.name("later")).unwrap();
            let mut line = String::new();
            from.read_line(&mut line).unwrap();
            line.trim() == "10.97.116.4"
        };
        assert!(!finds(), "{compiler:?}");
        let later = net.sleeper("later", Some(&net.ip(4)));
        assert!(finds(), "{compiler:?}");
        drop(later);
        assert!(!finds(), "{compiler:?}");
        drop(to);
        assert!(asks.wait().unwrap().success());
    }
    net.assert_clean();
}
