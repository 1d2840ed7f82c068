//! One oracle for everything that turns bytes of another party into values, run as a property test and
//! as a fuzz target.
use pd_abi::{Address, Command, CommandStatus, Event, EventKind, Frame, Operation, Request, SocketId};
use pd_abi::{SocketOption, MAGIC, VERSION};
use pd_shm::Pod;

/// Reads `bytes` as every type that crosses a boundary.
///
/// # Panics
/// If a value does not spell its bytes, or a checked field passes for what it is not.
pub fn run(bytes: &[u8]) {
    if let Some(frame) = round_trip::<Frame>(bytes) {
        check_frame(&frame);
    }
    if let Some(request) = round_trip::<Request>(bytes) {
        check_request(&request);
    }
    if let Some(event) = round_trip::<Event>(bytes) {
        check_event(&event);
    }
    if let Some(command) = round_trip::<Command>(bytes) {
        let status = CommandStatus::from_raw(command.status);
        assert!(status as u8 == command.status || status == CommandStatus::Failed);
    }
}

fn round_trip<T: Pod>(bytes: &[u8]) -> Option<T> {
    let value = T::from_bytes(bytes);
    assert_eq!(value.is_some(), bytes.len() == size_of::<T>(), "{} bytes", bytes.len());
    let value = value?;
    assert_eq!(value.as_bytes(), bytes);
    Some(value)
}

fn check_frame(frame: &Frame) {
    let ours = frame.magic == MAGIC && frame.version == VERSION;
    match frame.checked_kind() {
        Some(kind) => assert!(ours && kind as u32 == frame.kind),
        None => assert!(!ours || !(1..=16).contains(&frame.kind)),
    }
    let reason = frame.reason();
    assert!(frame.text.starts_with(reason.as_bytes()) && !reason.contains('\0'));
    let kind = frame.checked_kind().unwrap_or(pd_abi::FrameKind::Error);
    let again = Frame::new(kind).with_id(frame.id).with_bytes(frame.bytes, frame.page_bytes);
    let again = again.with_error(frame.errno, reason);
    assert_eq!((again.reason(), again.checked_kind()), (reason, Some(kind)));
}

fn check_request(request: &Request) {
    check_address(request.address());
    if let Some(operation) = Operation::from_raw(request.operation) {
        assert_eq!(operation as u8, request.operation);
    }
    if let Some(option) = SocketOption::from_raw(request.value) {
        assert_eq!(option as u32, request.value);
    }
    let id = SocketId(request.socket);
    assert_eq!(SocketId::new(id.slot(), id.generation()), id);
    let span = request.span();
    assert!(span.offset < 1 << 48 && span.len < 1 << 32);
    let again = Request::several_sends(id, span, request.sends());
    assert_eq!((again.span(), again.sends(), again.payload), (span, request.sends(), request.payload));
    let (first, second) = request.numbers();
    assert_eq!(request.with_numbers(first, second), *request);
    assert_eq!(request.with_address(request.address()), *request);
}

fn check_event(event: &Event) {
    check_address(event.address());
    if let Some(kind) = EventKind::from_raw(event.kind) {
        assert_eq!(kind as u8, event.kind);
    }
    assert_eq!(event.with_number(event.number()), *event);
    assert_eq!(event.with_address(event.address()), *event);
}

fn check_address(address: Address) {
    let Some(socket_addr) = address.to_socket_addr() else {
        assert!(!matches!(address.family, 4 | 6));
        return;
    };
    let again = Address::from(socket_addr);
    assert_eq!((again.family, again.port), (address.family, address.port));
    assert_eq!(again.to_socket_addr(), Some(socket_addr));
    assert!(!format!("{address:?}").is_empty());
}
