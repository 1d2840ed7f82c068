#!/usr/bin/env escript
%% -*- erlang -*-
%% "server": an echo, a process for each connection. "client ADDRESS": prints checksums that depend on nothing but this file.
%% "forever ADDRESS".
-mode(compile).
-define(PORT, 8200).
-define(BYTES, 4000000).

main(["server"]) ->
    {ok, Listener} = gen_tcp:listen(?PORT, [binary, {active, false}, {reuseaddr, true}, {backlog, 64}]),
    accept(Listener);
main(["client", Address]) ->
    io:format("active ~s~n", [several(Address, 4, fun active/1)]),
    io:format("once ~s~n", [several(Address, 4, fun once/1)]),
    io:format("passive ~s~n", [several(Address, 4, fun passive/1)]),
    io:format("packets ~s~n", [packets(Address)]),
    io:format("file ~s~n", [file(Address)]),
    io:format("nothing ~w~n", [nothing(Address)]);
main(["forever", Address]) ->
    several(Address, 3, fun once/1),
    main(["forever", Address]).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Owner = spawn(fun() -> receive start -> echo(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Owner),
    Owner ! start,
    accept(Listener).

echo(Socket) ->
    ok = inet:setopts(Socket, [{active, once}]),
    receive
        {tcp, Socket, Bytes} ->
            case gen_tcp:send(Socket, Bytes) of
                ok -> echo(Socket);
                _ -> gen_tcp:close(Socket)
            end;
        {tcp_closed, Socket} -> gen_tcp:close(Socket);
        {tcp_error, Socket, _} -> gen_tcp:close(Socket)
    end.

pattern(Seed) ->
    << <<((Place * 31 + Seed * 17 + (Place bsr 10)) band 255)>> || Place <- lists:seq(1, ?BYTES) >>.

digest(Bytes) ->
    <<Sum:64, _/binary>> = erlang:md5(Bytes),
    io_lib:format("~16.16.0b", [Sum]).

connected(Address, Options) ->
    {ok, Socket} = gen_tcp:connect(Address, ?PORT, [binary | Options], 20000),
    Socket.

%% Several connections at once, each of a process that runs Way.
several(Address, Count, Way) ->
    Self = self(),
    Work = fun(Seed) ->
        Socket = connected(Address, [{active, false}]),
        Sent = pattern(Seed),
        Sender = spawn_link(fun() -> ok = gen_tcp:send(Socket, Sent) end),
        Found = Way(Socket),
        unlink(Sender),
        true = Found =:= Sent,
        gen_tcp:close(Socket),
        Self ! {Seed, digest(Found)}
    end,
    [spawn_link(fun() -> Work(Seed) end) || Seed <- lists:seq(1, Count)],
    [[receive {Seed, Sum} -> Sum end, " "] || Seed <- lists:seq(1, Count)].

active(Socket) ->
    ok = inet:setopts(Socket, [{active, true}]),
    collect(Socket, 0, [], fun() -> ok end).

once(Socket) ->
    Again = fun() -> ok = inet:setopts(Socket, [{active, once}]) end,
    Again(),
    collect(Socket, 0, [], Again).

collect(_, ?BYTES, Parts, _) -> list_to_binary(lists:reverse(Parts));
collect(Socket, Count, Parts, Next) ->
    receive
        {tcp, Socket, Bytes} ->
            Next(),
            collect(Socket, Count + byte_size(Bytes), [Bytes | Parts], Next)
    after 60000 -> exit(nothing_comes)
    end.

passive(Socket) ->
    {ok, First} = gen_tcp:recv(Socket, 1000, 30000),
    {ok, Rest} = gen_tcp:recv(Socket, ?BYTES - 1000, 60000),
    <<First/binary, Rest/binary>>.

%% Messages with their length before them, which the virtual machine takes apart.
packets(Address) ->
    Socket = connected(Address, [{active, false}, {packet, 4}]),
    Messages = [erlang:md5(<<Number:32>>) || Number <- lists:seq(1, 2000)],
    Parts = [begin
        ok = gen_tcp:send(Socket, Message),
        {ok, Message} = gen_tcp:recv(Socket, 0, 30000),
        Message
    end || Message <- Messages],
    gen_tcp:close(Socket),
    digest(Parts).

%% A file by sendfile, and a half close: the echo ends after all of it.
file(Address) ->
    Name = filename:join("/tmp", "echo.erl." ++ os:getpid()),
    ok = file:write_file(Name, pattern(9)),
    Socket = connected(Address, [{active, false}]),
    Self = self(),
    spawn_link(fun() -> Self ! gen_tcp:recv(Socket, ?BYTES, 60000) end),
    {ok, ?BYTES} = file:sendfile(Name, Socket),
    {ok, Found} = receive Answer -> Answer end,
    ok = file:delete(Name),
    ok = gen_tcp:shutdown(Socket, write),
    {error, closed} = gen_tcp:recv(Socket, 1, 30000),
    digest(Found).

nothing(Address) ->
    Socket = connected(Address, [{active, false}]),
    {error, Why} = gen_tcp:recv(Socket, 1, 300),
    gen_tcp:close(Socket),
    Why.
