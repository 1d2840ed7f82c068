//! Byte streams between processes: what is sent is what is received.
use pd_tests::TestDriver;
use std::io::{BufRead, BufReader, Read};

fn transfer(driver: &TestDriver, port: u16, bytes: u64, send_message: usize, recv_message: usize) {
    let addr = format!("127.0.0.1:{port}");
    let mut receiver = driver.peer(&["recv", &addr, &recv_message.to_string()]);
    let mut out = BufReader::new(receiver.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let sender = driver.peer(&["send", &addr, &bytes.to_string(), &send_message.to_string(), "16"]);
    let sent = sender.wait_with_output().unwrap();
    let mut received = String::new();
    out.read_to_string(&mut received).unwrap();
    assert!(receiver.wait().unwrap().success());
    let sent = String::from_utf8(sent.stdout).unwrap();
    println!("{sent}{received}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (sent, received) = (words(&sent), words(&received));
    assert_eq!((&sent[1], sent.last()), (&received[1], received.last()), "bytes and checksum");
}

#[test]
fn messages_of_all_sizes() {
    let driver = TestDriver::new();
    for (index, message) in [1, 64, 1000, 4096, 65_536, 1 << 20].into_iter().enumerate() {
        transfer(&driver, 7000 + index as u16, (message as u64 * 3000).min(300 << 20), message, message);
    }
}
