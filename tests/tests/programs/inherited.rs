//! Programs whose parts get connections from each other: by `fork`, as standard input and output, by messages.
use super::site::{program, Site, CLIENT, SERVER};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const PORT: u16 = 7300;
const BYTES: u64 = 8 << 20;

/// What the client prints, of a server that echoes.
fn talk(site: &Site, library: bool) -> String {
    site.run(
        CLIENT,
        library,
        &["python3", &program("bulk.py"), &site.server(), &PORT.to_string(), &BYTES.to_string()],
    )
}

fn echoes(site: &Site, what: &[&str]) {
    site.compare(2 * BYTES, |site, library| {
        let server = site.serve(SERVER, library, PORT, what);
        let answer = talk(site, library);
        server.end();
        answer
    });
}

#[test]
#[ignore = "needs socat: make test-programs"]
fn socat_leads_a_connection_to_a_program() {
    let site = Site::new(48);
    let listens = format!("TCP-LISTEN:{PORT},reuseaddr,fork");
    for runs in ["EXEC:cat", "EXEC:cat,pipes", "EXEC:cat,nofork", "SYSTEM:cat,pty,raw,echo=0"] {
        echoes(&site, &["socat", "-t", "10", &listens, runs]);
    }
}

#[test]
#[ignore = "needs socat: make test-programs"]
fn socat_leads_a_connection_through_a_file() {
    let site = Site::new(49);
    let file = site.folder("socat").join("file");
    let file = file.to_str().unwrap();
    for runs in ["EXEC:cat,pipes", "EXEC:cat,nofork"] {
        let chain = format!(
            "socat -t 10 UNIX-LISTEN:{file},fork,unlink-early {runs} & while [ ! -e {file} ]; do sleep 0.1; done; \
             exec socat -t 10 TCP-LISTEN:{PORT},reuseaddr,fork UNIX-CONNECT:{file}"
        );
        echoes(&site, &["sh", "-c", &chain]);
    }
}

#[test]
#[ignore = "needs inetd, xinetd, systemd-socket-activate: make test-programs"]
fn inetds_start_servers_with_their_connections() {
    let site = Site::new(50);
    let folder = site.folder("inetd");
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let accepts = program("accepts.py");
    for (waits, runs) in
        [("nowait", "/usr/bin/cat cat".to_owned()), ("wait", format!("/usr/bin/python3 python3 {accepts}"))]
    {
        let file = write("inetd.conf", &format!("{PORT} stream tcp {waits} root {runs}\n"));
        // Debian has one of the two installed at a time.
        match Path::new("/usr/sbin/inetd").exists() {
            true => echoes(&site, &["/usr/sbin/inetd", "-i", &file]),
            false => eprintln!("SKIPPED: no inetd; it is one of openbsd-inetd's"),
        }
        let (server, arguments) = runs.split_once(' ').unwrap();
        let arguments = arguments.split_once(' ').map_or("", |(_, arguments)| arguments);
        let waits = if waits == "wait" { "yes" } else { "no" };
        let service = format!(
            "service echoes\n{{\n type = UNLISTED\n socket_type = stream\n protocol = tcp\n port = {PORT}\n wait = {waits}\n \
             user = root\n server = {server}\n server_args = {arguments}\n}}\n"
        );
        let pid = folder.join("pid");
        echoes(
            &site,
            &[
                "/usr/sbin/xinetd",
                "-dontfork",
                "-f",
                &write("xinetd.conf", &service),
                "-pidfile",
                pid.to_str().unwrap(),
            ],
        );
    }
    echoes(&site, &["systemd-socket-activate", "-a", "--inetd", "-l", &PORT.to_string(), "cat"]);
}

/// Its processes change their root and their user, and hand connections on.
#[test]
#[ignore = "needs vsftpd and lftp: make test-programs"]
fn vsftpd_serves_and_takes_files() {
    let site = Site::new(51);
    for more in ["", "seccomp_sandbox=NO\n", "one_process_model=YES\n"] {
        site.compare(if more.is_empty() { 0 } else { BYTES }, |site, library| {
            let folder = site.folder("ftp");
            let text = ftp(site, library, &folder, more);
            assert_eq!(fs::read(folder.join("root/pub/sent")).unwrap(), content());
            text
        });
    }
}

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 167 + (at >> 8) * 13) as u8).collect()
}

fn ftp(site: &Site, library: bool, folder: &Path, more: &str) -> String {
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    for name in ["root/pub", "empty"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    // The root may be nobody's to write.
    fs::set_permissions(folder.join("root/pub"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(folder.join("root/pub/file"), content()).unwrap();
    let config = format!(
        "listen=YES\nlisten_port={PORT}\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={}\nwrite_enable=YES\n\
         anon_upload_enable=YES\nsecure_chroot_dir={}\nxferlog_enable=NO\n{more}",
        at("root"),
        at("empty")
    );
    fs::write(folder.join("vsftpd.conf"), config).unwrap();
    let server = site.serve(SERVER, library, PORT, &["/usr/sbin/vsftpd", &at("vsftpd.conf")]);
    let script = format!(
        "set net:timeout 20; set net:max-retries 1; set ftp:ssl-allow no; set cmd:fail-exit yes; open ftp://{}:{PORT}; cd pub; \
         cls -1; get file -o {got}; put {got} -o sent; cls -1 -s",
        site.server(),
        got = at("got")
    );
    let answer = site.run(CLIENT, library, &["lftp", "-c", &script]);
    server.end();
    answer
}
