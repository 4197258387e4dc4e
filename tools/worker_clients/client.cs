// A client of `embedllm worker`: this file, no packages, C# 7, .NET Framework 4.6, .NET 5 or Mono, or later ones.
// docs/worker.md documents the methods.
using System;
using System.Collections;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Embedllm
{
    /// <summary>The worker answered with an error, or is gone: then Code is 0.</summary>
    public sealed class WorkerException : Exception
    {
        public WorkerException(string message, long code = 0, IDictionary<string, object> data = null) : base(message)
        {
            Code = code;
            Details = data ?? new Dictionary<string, object>();
        }

        public long Code { get; }

        /// <summary>What else the worker told, such as "kind", the library's name of the error.</summary>
        public IDictionary<string, object> Details { get; }
    }

    /// <summary>A worker process and the requests that it has. May be used from several threads.</summary>
    public sealed class WorkerClient : IDisposable
    {
        private const int KeptLines = 20; // of the worker's stderr, to tell why it ended
        private readonly Process process;
        private readonly StreamWriter input; // of its stdin
        private readonly Dictionary<long, Waiting> waiting = new Dictionary<long, Waiting>(); // its own lock
        private readonly object writing = new object();
        private readonly Queue<string> errors = new Queue<string>();
        private readonly Thread reader;
        private long lastId;
        private string trouble; // why the worker was ended here
        private string gone; // why, once it is

        /// <param name="program">Default: embedllm.</param>
        /// <param name="arguments">As on a command line.</param>
        /// <param name="environment">What differs from this process's.</param>
        public WorkerClient(string program = "embedllm", string arguments = "worker",
                            IDictionary<string, string> environment = null)
        {
            var start = new ProcessStartInfo(program, arguments)
            {
                UseShellExecute = false, CreateNoWindow = true,
                RedirectStandardInput = true, RedirectStandardOutput = true, RedirectStandardError = true,
            };
            foreach (var pair in environment ?? new Dictionary<string, string>())
                start.EnvironmentVariables[pair.Key] = pair.Value;
            process = Process.Start(start);
            input = process.StandardInput;
            process.ErrorDataReceived += (_, line) => Keep(line.Data);
            process.BeginErrorReadLine();
            reader = new Thread(Listen) { IsBackground = true };
            reader.Start();
        }

        /// <summary>
        /// Told of what loads, and of devices that were chosen; in a thread of the client's. What it throws fails the
        /// request that runs, but not from an async lambda: that is "async void", whose exceptions end the process.
        /// </summary>
        public Action<Progress> OnProgress { get; set; }
        public Action<Log> OnLog { get; set; }

        // <methods>

        /// <summary>A request by its wire names. The token cancels it; a reply then ends with the text so far.</summary>
        public Task<Dictionary<string, object>> RequestAsync(string method, IDictionary<string, object> parameters,
            Action<Chunk> onChunk = null, CancellationToken cancellation = default(CancellationToken))
        {
            var asked = new Waiting { OnChunk = onChunk };
            var id = Interlocked.Increment(ref lastId);
            var line = Line(new Dictionary<string, object>
                { { "id", id }, { "method", method }, { "params", parameters } }); // may throw, and nobody waits then
            lock (waiting)
            {
                if (gone != null) throw new WorkerException(gone);
                waiting[id] = asked;
            }
            Write(line);
            var registration = cancellation.Register(() => Cancel(id));
            asked.Done.Task.ContinueWith(_ => registration.Dispose(), TaskScheduler.Default);
            return asked.Done.Task;
        }

        public void Dispose()
        {
            Close();
        }

        /// <summary>
        /// Ends the worker, after the timeout by force; requests that are not answered are cancelled. In a callback it
        /// returns at once, for the worker's last messages are still to be read.
        /// </summary>
        public void Close(int timeoutMs = 5000)
        {
            if (Thread.CurrentThread == reader)
            {
                Task.Run(() => Close(timeoutMs));
                return;
            }
            if (!EndInput(timeoutMs) || !reader.Join(timeoutMs))
            {
                Kill("it did not end within " + timeoutMs / 1000.0 + " s, and was killed");
                if (!reader.Join(timeoutMs)) return; // a callback does not return; the process is not ours to free
            }
            process.Dispose();
        }

        /// <summary>Whether it could be done: another thread may be writing to a worker that does not read.</summary>
        private bool EndInput(int timeoutMs)
        {
            if (!Monitor.TryEnter(writing, timeoutMs)) return false;
            try
            {
                input.Close();
            }
            catch (IOException)
            {
                // it ended
            }
            finally
            {
                Monitor.Exit(writing);
            }
            return true;
        }

        private void Kill(string why)
        {
            trouble = why;
            try
            {
                process.Kill();
            }
            catch (Exception error) when (error is InvalidOperationException || error is System.ComponentModel.Win32Exception)
            {
                // it ended
            }
        }

        private void Cancel(long id)
        {
            var named = new Dictionary<string, object> { { "id", id } };
            Write(Line(new Dictionary<string, object> { { "method", "cancel" }, { "params", named } }));
        }

        private static string Line(Dictionary<string, object> message)
        {
            message["jsonrpc"] = "2.0";
            return Json.Write(message) + "\n"; // ASCII: the encoding of the pipe does not matter
        }

        private void Write(string line)
        {
            try
            {
                lock (writing)
                {
                    input.Write(line);
                    input.Flush();
                }
            }
            catch (Exception error) when (error is IOException || error is ObjectDisposedException)
            {
                // it ended; the reader tells those who wait
            }
        }

        private void Listen()
        {
            string line = null;
            try
            {
                while ((line = process.StandardOutput.ReadLine()) != null) Take(Json.ReadObject(line));
            }
            catch (Exception error) // an exception that is not caught in a thread ends the process
            {
                Kill("it wrote what is no message: " + line + " (" + error.Message + ")");
            }
            process.WaitForExit(); // stderr is read whole then
            List<Waiting> left;
            lock (waiting)
            {
                lock (errors) gone = "the worker ended: " + (trouble ?? "exit code " + process.ExitCode) + " " +
                                     string.Join(" ", errors);
                left = waiting.Values.ToList();
                waiting.Clear();
            }
            foreach (var asked in left) asked.Done.TrySetException(new WorkerException(gone));
        }

        private void Take(Dictionary<string, object> message)
        {
            object method;
            if (message.TryGetValue("method", out method))
            {
                var told = (Dictionary<string, object>)message["params"];
                if ((string)method == "progress") CallBack((long)told["id"], OnProgress, Progress.From(told));
                else if ((string)method == "log") CallBack(Oldest(), OnLog, Log.From(told));
                else if ((string)method == "chunk") CallBack((long)told["id"], OnChunkOf((long)told["id"]), Chunk.From(told));
                return;
            }
            Waiting asked;
            lock (waiting)
            {
                if (!(message["id"] is long) || !waiting.TryGetValue((long)message["id"], out asked)) return;
                waiting.Remove((long)message["id"]);
            }
            object found;
            if (message.TryGetValue("error", out found))
            {
                var error = (Dictionary<string, object>)found;
                object data;
                error.TryGetValue("data", out data);
                asked.Done.TrySetException(new WorkerException((string)error["message"], (long)error["code"],
                                                               (Dictionary<string, object>)data));
            }
            else asked.Done.TrySetResult((Dictionary<string, object>)message["result"]);
        }

        private Action<Chunk> OnChunkOf(long id)
        {
            Waiting asked;
            lock (waiting) return waiting.TryGetValue(id, out asked) ? asked.OnChunk : null;
        }

        /// <summary>The request that a log is of, for it names none; null when none waits.</summary>
        private long? Oldest()
        {
            lock (waiting) return waiting.Count > 0 ? waiting.Keys.Min() : (long?)null;
        }

        /// <summary>
        /// Calls back the host. What that throws fails the request, and no other; it keeps its place until the worker has
        /// answered.
        /// </summary>
        private void CallBack<T>(long? id, Action<T> callback, T told)
        {
            Waiting asked = null;
            lock (waiting) if (id != null && !waiting.TryGetValue(id.Value, out asked)) return;
            if (asked != null && asked.Done.Task.IsCompleted) return; // it has failed
            try
            {
                callback?.Invoke(told);
            }
            catch (Exception error)
            {
                if (asked == null)
                {
                    Console.Error.WriteLine(error); // nobody waits
                    return;
                }
                asked.Done.TrySetException(error);
                Cancel(id.Value);
            }
        }

        private void Keep(string line)
        {
            lock (errors)
            {
                if (line != null) errors.Enqueue(line);
                if (errors.Count > KeptLines) errors.Dequeue();
            }
        }

        private sealed class Waiting
        {
            public Action<Chunk> OnChunk;
            public readonly TaskCompletionSource<Dictionary<string, object>> Done =
                new TaskCompletionSource<Dictionary<string, object>>(TaskCreationOptions.RunContinuationsAsynchronously);
        }
    }

    // <types>

    /// <summary>An object of a request or a reply.</summary>
    public interface IJson
    {
        Dictionary<string, object> ToJson();
    }

    /// <summary>
    /// JSON texts. Objects are Dictionary&lt;string, object&gt;, arrays List&lt;object&gt;, numbers long or double.
    /// </summary>
    public static class Json
    {
        private const int Deepest = 200;

        /// <summary>As ASCII. Takes dictionaries, sequences and IJson too. FormatException for anything else.</summary>
        public static string Write(object value)
        {
            var text = new StringBuilder();
            Append(text, value);
            return text.ToString();
        }

        public static Dictionary<string, object> ReadObject(string text)
        {
            var at = 0;
            var found = Read(text, ref at, 0) as Dictionary<string, object>;
            Skip(text, ref at);
            if (found == null || at != text.Length) throw Wrong(text, at);
            return found;
        }

        internal static void Put(Dictionary<string, object> json, string name, object value)
        {
            if (value != null) json[name] = value;
        }

        internal static object Get(IDictionary<string, object> json, string name)
        {
            object found;
            return json.TryGetValue(name, out found) ? found : null;
        }

        internal static double? Number(object found)
        {
            return found == null ? (double?)null : Convert.ToDouble(found, CultureInfo.InvariantCulture);
        }

        internal static List<T> Items<T>(object found, Func<object, T> read)
        {
            return (found as List<object>)?.Select(read).ToList();
        }

        internal static Dictionary<string, T> Members<T>(object found, Func<object, T> read)
        {
            return (found as Dictionary<string, object>)?.ToDictionary(pair => pair.Key, pair => read(pair.Value));
        }

        internal static T Typed<T>(object found, Func<IDictionary<string, object>, T> read) where T : class
        {
            var json = found as Dictionary<string, object>;
            return json == null ? null : read(json);
        }

        /// <summary>What the type has no property for.</summary>
        internal static Dictionary<string, object> Rest(IDictionary<string, object> json, params string[] known)
        {
            return json.Where(pair => !known.Contains(pair.Key)).ToDictionary(pair => pair.Key, pair => pair.Value);
        }

        private static void Append(StringBuilder text, object value)
        {
            if (value == null) text.Append("null");
            else if (value is bool) text.Append((bool)value ? "true" : "false");
            else if (value is string) AppendText(text, (string)value);
            else if (value is IJson) Append(text, ((IJson)value).ToJson());
            else if (value is double || value is float)
            {
                var number = Convert.ToDouble(value);
                if (double.IsNaN(number) || double.IsInfinity(number))
                    throw new FormatException("JSON has no number " + number + "; give a finite one.");
                text.Append(number.ToString("R", CultureInfo.InvariantCulture));
            }
            else if (value is long || value is int || value is short || value is byte || value is ulong || value is uint)
                text.Append(Convert.ToString(value, CultureInfo.InvariantCulture));
            else if (value is IDictionary)
                AppendAll(text, '{', '}', ((IDictionary)value).Keys.Cast<object>(), key =>
                {
                    AppendText(text, (string)key);
                    text.Append(':');
                    Append(text, ((IDictionary)value)[key]);
                });
            else if (value is IEnumerable) AppendAll(text, '[', ']', ((IEnumerable)value).Cast<object>(), one => Append(text, one));
            else throw new FormatException("JSON has no " + value.GetType() + ".");
        }

        private static void AppendAll(StringBuilder text, char first, char last, IEnumerable<object> all, Action<object> append)
        {
            text.Append(first);
            var isFirst = true;
            foreach (var one in all)
            {
                if (!isFirst) text.Append(',');
                isFirst = false;
                append(one);
            }
            text.Append(last);
        }

        private static void AppendText(StringBuilder text, string value)
        {
            text.Append('"');
            foreach (var letter in value)
            {
                if (letter == '"' || letter == '\\') text.Append('\\').Append(letter);
                else if (letter < ' ' || letter > '~') text.Append("\\u").Append(((int)letter).ToString("x4"));
                else text.Append(letter);
            }
            text.Append('"');
        }

        private static object Read(string text, ref int at, int depth)
        {
            Skip(text, ref at);
            if (at >= text.Length || depth > Deepest) throw Wrong(text, at);
            switch (text[at])
            {
                case '{':
                    var members = new Dictionary<string, object>();
                    at++;
                    while (!Ends(text, ref at, '}', members.Count > 0))
                    {
                        var name = ReadText(text, ref at);
                        Expect(text, ref at, ":");
                        members[name] = Read(text, ref at, depth + 1);
                    }
                    return members;
                case '[':
                    var items = new List<object>();
                    at++;
                    while (!Ends(text, ref at, ']', items.Count > 0)) items.Add(Read(text, ref at, depth + 1));
                    return items;
                case '"': return ReadText(text, ref at);
                case 't': Expect(text, ref at, "true"); return true;
                case 'f': Expect(text, ref at, "false"); return false;
                case 'n': Expect(text, ref at, "null"); return null;
                default: return ReadNumber(text, ref at);
            }
        }

        private static object ReadNumber(string text, ref int at)
        {
            var start = at;
            while (at < text.Length && "+-.0123456789eE".IndexOf(text[at]) >= 0) at++;
            var written = text.Substring(start, at - start);
            long whole;
            double number;
            if (long.TryParse(written, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out whole)) return whole;
            if (double.TryParse(written, NumberStyles.Float, CultureInfo.InvariantCulture, out number)) return number;
            throw Wrong(text, start);
        }

        private static string ReadText(string text, ref int at)
        {
            var found = new StringBuilder();
            Expect(text, ref at, "\"");
            while (at < text.Length && text[at] != '"')
            {
                var letter = text[at++];
                if (letter == '\\')
                {
                    if (at >= text.Length) break;
                    var escaped = text[at++];
                    var place = "bfnrt".IndexOf(escaped);
                    if (escaped == 'u')
                    {
                        int code;
                        if (at + 4 > text.Length || !int.TryParse(text.Substring(at, 4), NumberStyles.AllowHexSpecifier,
                                                                  CultureInfo.InvariantCulture, out code)) throw Wrong(text, at);
                        letter = (char)code;
                        at += 4;
                    }
                    else letter = place < 0 ? escaped : "\b\f\n\r\t"[place];
                }
                found.Append(letter);
            }
            Expect(text, ref at, "\"");
            return found.ToString();
        }

        /// <summary>Whether the object or array ends here; else the comma before its next part is passed.</summary>
        private static bool Ends(string text, ref int at, char last, bool isFurther)
        {
            Skip(text, ref at);
            if (at < text.Length && text[at] == last)
            {
                at++;
                return true;
            }
            if (isFurther) Expect(text, ref at, ",");
            return false;
        }

        private static void Expect(string text, ref int at, string expected)
        {
            Skip(text, ref at);
            if (string.CompareOrdinal(text, at, expected, 0, expected.Length) != 0) throw Wrong(text, at);
            at += expected.Length;
        }

        private static void Skip(string text, ref int at)
        {
            while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0) at++;
        }

        private static FormatException Wrong(string text, int at)
        {
            return new FormatException("no JSON at character " + at + " of '" + text.Substring(0, Math.Min(text.Length, 200)) + "'");
        }
    }
}
