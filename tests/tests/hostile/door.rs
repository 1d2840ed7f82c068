//! What a client can have the driver do before it is attached, and beside its rings.
use super::stage;
use pd_abi::{Frame, FrameKind};
use pd_shm::Pod;
use pd_tests::Raw;
use rustix::io::Errno;
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// A TCP socket that takes an hour to close, and its peer, which does not read.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::from_secs(3600))).unwrap();
    stream.set_nonblocking(false).unwrap();
    (stream, peer)
}

/// Sends a message with a descriptor. Says whether the kernel took it.
fn send_with(socket: impl AsFd, bytes: &[u8], fd: impl AsFd) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Errno::PERM, "refused by the kernel");
            false
        }
    }
}

#[test]
fn descriptors_sent_before_the_accept() {
    let scene = stage();
    let admin = scene.driver.socket().with_file_name("admin.sock");
    let (gift, peer) = lingering();
    let hello = Frame::new(FrameKind::Hello);
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_refused = (numbers.next(), numbers.next()) >= (Some(6), Some(16));
    for _ in 0..8 {
        // As fast as can be: with luck the driver has not accepted it yet.
        let client = Raw::dial(&scene.driver);
        let taken = send_with(&client, hello.as_bytes(), &gift);
        let administrator = UnixStream::connect(&admin).unwrap();
        let taken = taken | send_with(&administrator, b"{\"op\":\"list\"}\n", &gift);
        assert!(!taken || !is_refused, "the kernel can refuse them");
    }
    scene.bystander.check(&scene.driver);
    // Resets the connection, so that closing the other end waits for nobody.
    drop(peer);
    drop(gift);
    scene.end();
}
